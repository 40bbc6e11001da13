// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

// keeper has a claim for each address that this node shall have.
type keeper struct {
	params
	initialized func(statedb.WriteTxn)
	claims      map[netip.Addr]*claim

	mu       sync.Mutex
	problems map[netip.Addr]error
	health   cell.Health
}

// run keeps the addresses until the context ends. Those that a former agent has left and that
// this node shall not have any more go first.
func (k *keeper) run(ctx context.Context, health cell.Health) error {
	k.health = health
	_, initialized := k.IPs.Initialized(k.DB.ReadTxn())
	select {
	case <-initialized:
	case <-ctx.Done():
		return nil
	}
	if backend := k.Maps.Backend(); backend == nil || backend.Name() != "kernel" {
		health.OK("Addresses are left alone, as the maps are in memory")
		return k.start()
	}
	entries, err := k.Maps.Floating.Dump()
	if err != nil {
		return fmt.Errorf("read the leases of the former agent: %w", err)
	}
	if err := k.adopt(entries); err != nil {
		return err
	}
	if err := k.start(); err != nil {
		return err
	}
	k.note(netip.Addr{}, nil)
	k.keep(ctx)
	return nil
}

// keep brings the addresses that this node shall have, until the context ends.
func (k *keeper) keep(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	canClaim := k.Enabled.Enabled && k.Connection.Leases != nil
	for {
		rows, changed := k.IPs.AllWatch(k.DB.ReadTxn())
		var wanted []*tables.EgressIP
		for row := range rows {
			if canClaim && row.Node == k.LocalNode.Name && row.IfIndex != 0 {
				wanted = append(wanted, row)
			}
		}
		if !k.withdrawOthers(ctx, wanted) {
			changed = nil // soon again
		}
		for _, row := range wanted {
			if k.claims[row.Addr] == nil && ctx.Err() == nil {
				c := &claim{keeper: k, want: row, ended: make(chan struct{})}
				withdrawn, withdraw := context.WithCancel(ctx)
				c.withdraw, k.claims[row.Addr] = withdraw, c
				running.Go(func() { c.run(ctx, withdrawn) })
			}
		}
		if changed == nil {
			pause.For(ctx, retryClaim)
		} else {
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// withdrawOthers gives up the addresses that this node shall not have any more, or by another
// device. It returns false if one could not be.
func (k *keeper) withdrawOthers(ctx context.Context, wanted []*tables.EgressIP) bool {
	isWanted := func(addr netip.Addr, ifIndex uint32) bool {
		return slices.ContainsFunc(wanted, func(row *tables.EgressIP) bool {
			return row.Addr == addr && row.IfIndex == ifIndex
		})
	}
	var gone []*claim
	for addr, c := range k.claims {
		if !isWanted(addr, c.want.IfIndex) {
			c.withdraw()
			gone = append(gone, c)
		}
	}
	for _, c := range gone {
		<-c.ended
		delete(k.claims, c.want.Addr)
	}
	all := true
	for row := range k.Rows.All(k.DB.ReadTxn()) {
		if ctx.Err() != nil || isWanted(row.Addr, row.IfIndex) {
			continue
		}
		err := k.drop(ctx, row.Addr)
		k.note(row.Addr, err)
		all = all && err == nil
	}
	return all
}

// adopt makes rows of the leases that the kernel has from a former agent and whose addresses
// are still there.
func (k *keeper) adopt(entries []bpf.Entry[bpf.ExitKey, bpf.FloatingValue]) error {
	for _, e := range entries {
		addr := e.Key.Addr.Addr()
		device, err := deviceOf(addr)
		if err != nil {
			return err
		}
		if device == 0 {
			continue
		}
		err = k.set(addr, func(row *tables.EgressIPLease) {
			row.IfIndex, row.Assigned = uint32(device), true
			row.Deadline, row.Generation = e.Value.Deadline, e.Value.Generation
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// start says that the rows are complete: other entries in the kernel go.
func (k *keeper) start() error {
	wtxn := k.DB.WriteTxn(k.Rows)
	k.initialized(wtxn)
	wtxn.Commit()
	return nil
}

// set changes the row of an address, or makes one.
func (k *keeper) set(addr netip.Addr, change func(*tables.EgressIPLease)) error {
	wtxn := k.DB.WriteTxn(k.Rows)
	defer wtxn.Abort()
	row := &tables.EgressIPLease{Addr: addr}
	former, _, found := k.Rows.Get(wtxn, tables.EgressIPLeaseByAddr(addr))
	if found {
		row = tables.Clone(former)
	}
	change(row)
	if found && row.Equal(former) {
		return nil
	}
	if !found || row.MapValue() != former.MapValue() {
		row.Reconciled = tables.Pending()
	}
	if _, _, err := k.Rows.Insert(wtxn, row); err != nil {
		return fmt.Errorf("write the lease of %s: %w", addr, err)
	}
	wtxn.Commit()
	return nil
}

func (k *keeper) forget(addr netip.Addr) error {
	wtxn := k.DB.WriteTxn(k.Rows)
	defer wtxn.Abort()
	if _, _, err := k.Rows.Delete(wtxn, &tables.EgressIPLease{Addr: addr}); err != nil {
		return fmt.Errorf("delete the lease of %s: %w", addr, err)
	}
	wtxn.Commit()
	return nil
}

// note says in the row of an address and in health what is wrong with it, if anything is.
func (k *keeper) note(addr netip.Addr, problem error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.problems, addr)
	text := ""
	if problem != nil {
		k.problems[addr], text = problem, problem.Error()
	}
	if _, _, found := k.Rows.Get(k.DB.ReadTxn(), tables.EgressIPLeaseByAddr(addr)); found {
		err := k.set(addr, func(row *tables.EgressIPLease) { row.Problem = text })
		if err != nil {
			k.problems[addr] = errors.Join(problem, err)
		}
	}
	if len(k.problems) == 0 {
		k.health.OK("Addresses are where they shall be")
		return
	}
	var errs []error
	for _, err := range k.problems {
		errs = append(errs, err)
	}
	k.health.Degraded("Egress addresses are not at this node", errors.Join(errs...))
}
