// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"

	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// counters reads the counters, and removes those of policies that there are no more.
type counters struct {
	params

	gone    map[bpf.TrafficKey]bool // whose policy was not there at the last sweep
	endings map[uint32]bool         // taken counters that were no pair's at the last sweep
}

// policies returns the names of all egress policies by their cookies.
func (c *counters) policies(txn statedb.ReadTxn) map[uint32]string {
	names := map[uint32]string{}
	for p := range c.Policies.All(txn) {
		names[bpf.PolicyCookie(p.Name)] = p.Name
	}
	return names
}

// read brings the table up to date. Counters of policies that are not there have no row.
func (c *counters) read(context.Context) error {
	counts, loaded := bpf.TrafficCountsOf(c.Maps)
	if !loaded {
		return nil
	}
	all, err := counts.Read()
	if err != nil {
		return err
	}
	names := map[uint32]string{}
	if len(all) > 0 || c.Traffic.NumObjects(c.DB.ReadTxn()) > 0 {
		names = c.policies(c.DB.ReadTxn())
	}
	wanted := map[tables.EgressTrafficKey]*tables.EgressTraffic{}
	for _, t := range all {
		name, found := names[t.Policy]
		if !found {
			continue
		}
		row := &tables.EgressTraffic{
			Policy: name, EgressIP: t.Egress,
			SentPackets: t.Sent.Packets, SentBytes: t.Sent.Bytes,
			ReceivedPackets: t.Received.Packets, ReceivedBytes: t.Received.Bytes,
		}
		wanted[row.Key()] = row
	}
	return c.write(wanted)
}

// write writes the rows that differ.
func (c *counters) write(wanted map[tables.EgressTrafficKey]*tables.EgressTraffic) error {
	wtxn := c.DB.WriteTxn(c.Traffic)
	defer wtxn.Abort()
	for old := range c.Traffic.All(wtxn) {
		row := wanted[old.Key()]
		if row == nil {
			if _, _, err := c.Traffic.Delete(wtxn, old); err != nil {
				return fmt.Errorf("remove traffic of policy %s: %w", old.Policy, err)
			}
		} else if *row == *old {
			delete(wanted, old.Key())
		}
	}
	for _, row := range wanted {
		if _, _, err := c.Traffic.Insert(wtxn, row); err != nil {
			return fmt.Errorf("insert traffic of policy %s: %w", row.Policy, err)
		}
	}
	wtxn.Commit()
	return nil
}

// sweep removes the counters of policies that were not there at the last sweep either, as a rule
// may be in the kernel a moment before its policy is looked up here. A counter is free for another
// pair one sweep after that: a packet may be between finding the counter and adding to it.
func (c *counters) sweep(context.Context) error {
	counts, loaded := bpf.TrafficCountsOf(c.Maps)
	txn := c.DB.ReadTxn()
	if initialized, _ := c.Policies.Initialized(txn); !loaded || !initialized {
		return nil
	}
	all, err := counts.Read()
	if err != nil {
		return err
	}
	names := c.policies(txn)
	gone, inUse := map[bpf.TrafficKey]bool{}, map[uint32]bool{}
	for _, t := range all {
		inUse[t.Counter] = true
		if _, found := names[t.Policy]; found {
			continue
		}
		key := bpf.TrafficKey{Policy: t.Policy, Egress: bpf.AddressFrom(t.Egress)}
		if !c.gone[key] {
			gone[key] = true
			continue
		}
		if err := counts.Remove(t); err != nil {
			return err
		}
	}
	c.gone = gone
	return c.free(counts, inUse)
}

// free gives back the counters that were no pair's at the last sweep either: also those that an
// agent had removed which ended then.
func (c *counters) free(counts bpf.TrafficCounts, inUse map[uint32]bool) error {
	taken, err := counts.Taken()
	if err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read clock: %w", err)
	}
	endings := map[uint32]bool{}
	for _, counter := range taken {
		switch {
		case inUse[counter]:
		case !c.endings[counter]:
			endings[counter] = true
		default:
			// No translation has named it since the last sweep.
			since := uint32(max(0, now.Sec-int64(sweepInterval.Seconds())/2))
			if err := counts.Free(counter, since); err != nil {
				return err
			}
		}
	}
	c.endings = endings
	return nil
}
