// SPDX-License-Identifier: Apache-2.0

package portdemand

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
)

// looker looks at what is used.
type looker struct {
	params
	counts counts
	now    func() time.Time

	peaks   map[string]*peak          // of pools
	closed  map[closedBlock]time.Time // since when the programs know
	drained map[closedBlock]bool      // of closed: no connection has a port of it
	walked  time.Time                 // when it searched in the translations
}

// closedBlock is a block that this node gives back. A pool that is another one of the same name has
// closed its blocks at other times.
type closedBlock struct {
	pool, uid string
	index     int
	at        time.Time
}

func newLooker(p params, c counts) *looker {
	return &looker{
		params: p, counts: c, now: time.Now, peaks: map[string]*peak{},
		closed: map[closedBlock]time.Time{}, drained: map[closedBlock]bool{},
	}
}

// own is what this node has of a pool.
type own struct {
	*tables.EgressIPPool
	open, closed []tables.PortBlock
	used         int
}

// look brings the table up to date.
func (l *looker) look(ctx context.Context) error {
	txn := l.DB.ReadTxn()
	var pools []*own
	for p := range l.Pools.All(txn) {
		o := &own{EgressIPPool: p}
		if o.open, o.closed = p.BlocksOf(l.LocalNode.Name); len(o.open)+len(o.closed) > 0 {
			pools = append(pools, o)
		}
	}
	if len(pools) == 0 {
		return l.write(nil)
	}
	loaded, err := l.count(ctx, txn, pools)
	if err != nil || !loaded {
		return err
	}
	if err := l.drain(txn, pools); err != nil {
		return err
	}
	rows := map[string]*tables.EgressPortDemand{}
	for _, o := range pools {
		rows[o.Name] = l.row(o)
	}
	return l.write(rows)
}

// count sets how many ports of pools are used. If that would need another block, it is made sure
// of first.
func (l *looker) count(ctx context.Context, txn statedb.ReadTxn, pools []*own) (bool, error) {
	for range 2 {
		most, loaded, err := l.counts.used()
		if err != nil || !loaded {
			return false, err
		}
		mayNeedMore := false
		for _, o := range pools {
			o.used = 0
			for b := range l.Blocks.All(txn) {
				if b.Pool == o.Name {
					o.used = max(o.used, most[b.Addr])
				}
			}
			told, _, found := l.Demand.Get(txn, tables.EgressPortDemandByPool(o.Name))
			isTold := found && told.Blocks > len(o.open)
			if !isTold && wanted(len(o.open), o.PortsPerBlock, o.used, o.used) > len(o.open) {
				mayNeedMore = true
			}
		}
		if !mayNeedMore {
			break
		}
		if err := l.counts.recount(ctx); err != nil {
			return false, fmt.Errorf("count the ports that are used: %w", err)
		}
	}
	return true, nil
}

func (l *looker) row(o *own) *tables.EgressPortDemand {
	p := l.peaks[o.Name]
	if p == nil {
		p = &peak{since: l.now()}
		l.peaks[o.Name] = p
	}
	most, known := p.add(l.now(), o.used)
	least := most
	if !known { // it may have been any number
		least = len(o.open) * o.PortsPerBlock
	}
	row := &tables.EgressPortDemand{
		PoolPorts: tables.PoolPorts{
			Pool: o.Name, Blocks: wanted(len(o.open), o.PortsPerBlock, o.used, least),
		},
		Has: len(o.open), Ports: len(o.open) * o.PortsPerBlock, Used: o.used, Peak: most,
	}
	for _, b := range o.closed {
		if l.drained[o.closing(b)] {
			row.Drained = append(row.Drained, tables.DrainedBlock{Index: b.Index, Closed: b.Closed})
		}
	}
	return row
}

func (o *own) closing(b tables.PortBlock) closedBlock {
	return closedBlock{o.Name, o.UID, b.Index, b.Closed}
}

// drain finds out which closed blocks have no connections any more. A block stays drained: new
// connections get no ports of it.
func (l *looker) drain(txn statedb.ReadTxn, pools []*own) error {
	closed, drained := map[closedBlock]time.Time{}, map[closedBlock]bool{}
	var waiting []*own
	for _, o := range pools {
		waits := false
		for _, b := range o.closed {
			key := o.closing(b)
			if !l.inForce(txn, o, b) {
				continue
			}
			since, known := l.closed[key]
			if !known {
				since = l.now()
			}
			closed[key] = since
			if l.drained[key] {
				drained[key] = true
			} else if l.now().Sub(since) >= drainAge {
				waits = true
			}
		}
		if waits {
			waiting = append(waiting, o)
		}
	}
	l.closed, l.drained = closed, drained
	if len(waiting) == 0 || l.now().Sub(l.walked) < walkInterval {
		return nil
	}
	used, err := l.usedBlocks(waiting)
	if err != nil {
		return err
	}
	l.walked = l.now()
	for key, since := range closed {
		if l.now().Sub(since) >= drainAge && !used[key] {
			drained[key] = true
		}
	}
	return nil
}

// inForce reports whether the programs know for each address of a pool that a block is closed.
func (l *looker) inForce(txn statedb.ReadTxn, o *own, b tables.PortBlock) bool {
	port := uint16(tables.FirstPort + b.Index*o.PortsPerBlock)
	for row := range l.Blocks.All(txn) {
		if row.Pool != o.Name {
			continue
		}
		if row.Status.Kind != reconciler.StatusKindDone || !row.IsClosed(port) {
			return false
		}
	}
	return true
}

// usedBlocks returns the closed blocks of pools whose ports connections have.
func (l *looker) usedBlocks(pools []*own) (map[closedBlock]bool, error) {
	used := map[closedBlock]bool{}
	err := l.counts.translations(func(source netip.AddrPort) {
		for _, o := range pools {
			if o.PortsPerBlock == 0 || source.Port() < tables.FirstPort {
				continue
			}
			index := (int(source.Port()) - tables.FirstPort) / o.PortsPerBlock
			for _, b := range o.closed {
				if b.Index == index && o.Contains(source.Addr()) {
					used[o.closing(b)] = true
				}
			}
		}
	})
	return used, err
}

// write writes the rows that differ.
func (l *looker) write(rows map[string]*tables.EgressPortDemand) error {
	wtxn := l.DB.WriteTxn(l.Demand)
	defer wtxn.Abort()
	for old := range l.Demand.All(wtxn) {
		row := rows[old.Pool]
		if row == nil {
			delete(l.peaks, old.Pool)
			if _, _, err := l.Demand.Delete(wtxn, old); err != nil {
				return fmt.Errorf("remove demand of pool %s: %w", old.Pool, err)
			}
		} else if row.Equal(old) {
			delete(rows, old.Pool)
		}
	}
	for _, row := range rows {
		if _, _, err := l.Demand.Insert(wtxn, row); err != nil {
			return fmt.Errorf("insert demand of pool %s: %w", row.Pool, err)
		}
	}
	wtxn.Commit()
	return nil
}
