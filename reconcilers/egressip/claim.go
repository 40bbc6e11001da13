// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/statedb/reconciler"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/pause"
)

const (
	// A new owner announces an address so often at first, and then from time to time: a switch
	// may have been down, or have forgotten it.
	announceFirst = 5
	announceSoon  = time.Second
	announceLater = 30 * time.Second

	retryClaim   = 5 * time.Second
	withdrawWait = 5 * time.Second
	lookAgain    = 20 * time.Millisecond
)

// claim is what this node does for one address that it shall have: it gets and keeps the lease,
// and as long as it has that, the address is at the device.
type claim struct {
	*keeper
	want *tables.EgressIP

	withdraw context.CancelFunc // gives the address up
	ended    chan struct{}
}

// run claims the address until it shall be elsewhere, which ends withdrawn, or the agent stops,
// which ends ctx: then the address stays, until the lease has run out.
func (c *claim) run(ctx, withdrawn context.Context) {
	defer close(c.ended)
	for ctx.Err() == nil && withdrawn.Err() == nil {
		err := c.term(ctx, withdrawn)
		if ctx.Err() != nil {
			return
		}
		c.note(c.want.Addr, err)
		if withdrawn.Err() == nil {
			pause.For(withdrawn, retryClaim)
		}
	}
	c.note(c.want.Addr, nil)
}

// term is the time from when the lease is tried for until it is given up or lost.
func (c *claim) term(ctx, withdrawn context.Context) error {
	if err := c.free(); err != nil {
		return err
	}
	election, stop := context.WithCancel(ctx)
	defer stop()
	l := newLock(c.params, c.want.Addr)
	l.renewed = func(deadline uint64, generation uint32) error {
		return c.set(c.want.Addr, func(row *tables.EgressIPLease) {
			row.Deadline, row.Generation, row.IfIndex = deadline, generation, c.want.IfIndex
		})
	}
	l.asked = func(err error) {
		if err != nil {
			err = fmt.Errorf("ask for the lease of %s: %w", c.want.Addr, err)
		}
		c.note(c.want.Addr, err)
	}
	var serving sync.WaitGroup
	serve, stopServing := context.WithCancel(election)
	defer stopServing()
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: l.LeaseMeta.Name, Lock: l,
		LeaseDuration: c.Config.EgressIPLease, RenewDeadline: c.Config.valid(),
		RetryPeriod: lookAtLease, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {},
			OnStoppedLeading: stopServing,
		},
	})
	if err != nil {
		return fmt.Errorf("claim %s: %w", c.want.Addr, err)
	}
	serving.Go(func() { c.serve(serve) })
	given := make(chan error, 1)
	go func() {
		select {
		case <-serve.Done():
			given <- nil
			return
		case <-withdrawn.Done():
		}
		if ctx.Err() != nil { // the agent stops, which is no withdrawal
			given <- nil
			return
		}
		stopServing()
		serving.Wait()
		err := c.drop(ctx, c.want.Addr)
		l.release.Store(err == nil)
		stop()
		given <- err
	}()
	e.Run(klog.NewContext(election, klog.Logger{})) // what comes of it is told in rows
	stopServing()
	serving.Wait()
	if ctx.Err() != nil {
		return nil
	}
	if err := <-given; err != nil {
		return err
	}
	if withdrawn.Err() != nil {
		return nil
	}
	return errors.Join(fmt.Errorf("the lease of %s is lost", c.want.Addr), c.drop(ctx, c.want.Addr))
}

// free returns an error if the address is at this node, and not by this agent or a former one.
func (c *claim) free() error {
	if _, _, ours := c.Rows.Get(c.DB.ReadTxn(), tables.EgressIPLeaseByAddr(c.want.Addr)); ours {
		return nil
	}
	device, err := deviceOf(c.want.Addr)
	if err == nil && device != 0 {
		err = fmt.Errorf("%s was given to device %d by others: it is left alone", c.want.Addr, device)
	}
	return err
}

// serve has the address at its device once there is a lease, and announces it: again from the
// beginning when the device's link comes up, as what is at its other end may be another switch.
func (c *claim) serve(ctx context.Context) {
	wasUp, announced := false, 0
	for ctx.Err() == nil {
		device, _, changed, found := c.Devices.GetWatch(
			c.DB.ReadTxn(), tables.DeviceByIndex(int(c.want.IfIndex)))
		isUp := found && device.OperUp
		if isUp && !wasUp {
			announced = 0
		}
		wasUp = isUp
		err := c.bring(ctx)
		if err == nil && isUp {
			err = announce(c.want.Addr, int(c.want.IfIndex))
		}
		if ctx.Err() != nil {
			return
		}
		c.note(c.want.Addr, err)
		interval := retryClaim
		if err == nil {
			interval = announceLater
			if announced++; announced < announceFirst {
				interval = announceSoon
			}
		}
		pause.Until(ctx, interval, changed)
	}
}

// bring gives the address to the device, when the kernel has the lease and the programs that
// look at it, and when nothing else has the address.
func (c *claim) bring(ctx context.Context) error {
	if err := c.await(ctx, c.guarded); err != nil {
		return err
	}
	device, err := deviceOf(c.want.Addr)
	if err != nil {
		return err
	}
	if device != int(c.want.IfIndex) {
		if err := remove(c.want.Addr); err != nil {
			return err
		}
		if err := probe(ctx, c.want.Addr, int(c.want.IfIndex)); err != nil {
			return err
		}
		if err := assign(c.want.Addr, int(c.want.IfIndex)); err != nil {
			return err
		}
	}
	return c.set(c.want.Addr, func(row *tables.EgressIPLease) { row.Assigned = true })
}

// guarded reports whether the programs are silent about the address once the lease has run out.
func (c *claim) guarded() bool {
	txn := c.DB.ReadTxn()
	row, _, found := c.Rows.Get(txn, tables.EgressIPLeaseByAddr(c.want.Addr))
	config := tables.ConfigEntryOf(txn, c.ConfigEntries)
	now, err := Now()
	return found && err == nil && row.Deadline > now && c.inKernel(row) &&
		config != nil && config.Value.Flags&bpf.ConfigFloating != 0 && tables.Unattached(txn,
		c.Attachments, c.want.IfIndex, bpf.ProgramFromNetdev, bpf.ProgramToNetdev) == ""
}

// drop takes an address from the node, and its lease from the kernel. It returns nil only when both
// are done: when the kernel translates nothing to the address any more, without a lease to look at.
// Routers are told before.
func (k *keeper) drop(ctx context.Context, addr netip.Addr) error {
	if err := k.withdrawRoute(ctx, addr); err != nil {
		return err
	}
	if err := remove(addr); err != nil {
		return err
	}
	if _, _, found := k.Rows.Get(k.DB.ReadTxn(), tables.EgressIPLeaseByAddr(addr)); !found {
		return nil
	}
	err := k.set(addr, func(row *tables.EgressIPLease) { row.Deadline, row.Assigned = 0, false })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawWait)
	defer cancel()
	err = k.await(ctx, func() bool {
		row, _, found := k.Rows.Get(k.DB.ReadTxn(), tables.EgressIPLeaseByAddr(addr))
		return !found || row.Deadline == 0 && k.inKernel(row) && !k.translated(addr)
	})
	if err != nil {
		return fmt.Errorf("take the lease of %s from the kernel: %w", addr, err)
	}
	return k.forget(addr)
}

// translated reports whether packets may get an address in the kernel.
func (k *keeper) translated(addr netip.Addr) bool {
	key := tables.MirrorByKey[bpf.ExitKey, bpf.ExitValue](bpf.ExitKey{Addr: bpf.AddressFrom(addr)})
	_, _, found := k.Exits.Get(k.DB.ReadTxn(), key)
	return found
}

func (k *keeper) inKernel(row *tables.EgressIPLease) bool {
	return row.Status.Kind == reconciler.StatusKindDone
}

// await looks until a condition holds.
func (k *keeper) await(ctx context.Context, holds func() bool) error {
	for !holds() {
		if !pause.For(ctx, lookAgain) {
			return ctx.Err()
		}
	}
	return nil
}
