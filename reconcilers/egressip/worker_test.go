// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// TestVotesGoOn: while something takes long to be done in the kernel, votes are repeated, and what
// has come of it is taken in later.
func TestVotesGoOn(t *testing.T) {
	w := newWorld(t)
	const count = 600
	clock := uint64(1e12)
	w.keeper.now = func() uint64 { return clock }
	require.NoError(t, w.adopt())
	addrs := make([]netip.Addr, count)
	for i := range addrs {
		addrs[i] = netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
		w.ips.Put(&tables.EgressIP{ // another node had it: it is not asked for
			Addr: addrs[i], Node: "node-2", Owner: "node-2", IfIndex: uint32(w.near.Index),
		})
	}
	require.NoError(t, w.followCandidates())
	for _, addr := range addrs {
		w.wants(addr, "node-1")
	}
	goesOn := make(chan struct{})
	w.configurer.queue <- task{func() error { <-goesOn; return nil }, func(error) {}}
	ctx, stop := context.WithCancel(t.Context())
	wait := w.startWorkers(ctx)
	clock += w.voter.patience()
	for range 20 {
		clock += uint64(w.Config.tick())
		require.NoError(t, w.vote())
		require.NoError(t, w.keepAll(ctx))
		for _, addr := range addrs {
			require.True(t, w.row(addr).Held, addr)
			require.False(t, w.row(addr).Assigned, addr)
		}
	}
	close(goesOn)
	isBusy := func(addr netip.Addr) bool { return w.owned[addr].busy }
	for slices.ContainsFunc(addrs, isBusy) {
		(<-w.done)()
	}
	require.NoError(t, w.keepAll(ctx))
	for _, addr := range addrs {
		require.True(t, w.row(addr).Assigned, addr)
	}
	stop()
	wait()
	for _, addr := range addrs {
		require.NoError(t, remove(addr))
	}
}

// driven is a world whose keeper the test drives, by a clock of its own. v4 is at the device.
type driven struct {
	*world
	clock uint64
}

func newDriven(t *testing.T) *driven {
	d := &driven{newWorld(t), 1e12}
	d.keeper.now = func() uint64 { return d.clock }
	require.NoError(t, d.adopt())
	ctx, stop := context.WithCancel(context.Background())
	wait := d.startWorkers(ctx)
	t.Cleanup(func() {
		stop()
		wait()
		require.NoError(t, remove(v4))
	})
	d.clock += d.voter.patience()
	d.ips.Put(&tables.EgressIP{ // another node had it: it is not asked for
		Addr: v4, Node: "node-2", Owner: "node-2", IfIndex: uint32(d.near.Index),
	})
	require.NoError(t, d.followCandidates())
	d.wants(v4, "node-1")
	d.tick()
	d.takeIn()
	require.True(t, d.has(v4))
	return d
}

func (d *driven) tick() {
	require.NoError(d, d.vote())
	require.NoError(d, d.keepAll(d.Context()))
}

// takeIn waits for the end of the tasks that there are, and returns what is wrong then.
func (d *driven) takeIn() error {
	for d.owned[v4].busy {
		(<-d.done)()
	}
	return d.keepAll(d.Context())
}

// lose has the node be no candidate any more, and lose its votes.
func (d *driven) lose() {
	d.ips.Remove(&tables.EgressIP{Addr: v4})
	d.clock += d.voter.term()
	d.tick()
	require.True(d, d.owned[v4].busy)
}

// TestDeviceChanges: an address that shall be at another device goes there at once, and not to the
// former one again.
func TestDeviceChanges(t *testing.T) {
	d := newDriven(t)
	d.devices.Put(&tables.Device{
		Index: d.far.Index, Name: d.far.Name, MAC: d.far.HardwareAddr.String(), Up: true, OperUp: true,
	})
	d.clock += announceSoon - 1
	for _, device := range []*net.Interface{d.far, d.near} {
		found, _, _ := d.IPs.Get(d.db.ReadTxn(), tables.EgressIPByAddr(v4))
		ip := *found
		ip.IfIndex = uint32(device.Index)
		d.ips.Put(&ip)
		d.clock++ // it is due to be announced
		d.tick()
		require.NoError(t, d.takeIn())
		require.False(t, d.row(v4).Assigned)
		require.False(t, d.owned[v4].busy)
		d.tick()
		require.NoError(t, d.takeIn())
		at, _ := deviceOf(v4)
		require.Equal(t, device.Index, at)
		require.True(t, d.row(v4).Assigned)
	}
}

// TestRemovalFails: an address that cannot be removed is tried again, but not all the time.
func TestRemovalFails(t *testing.T) {
	d := newDriven(t)
	failed := errors.New("interrupted")
	d.keeper.remove = func(netip.Addr) error { return failed }
	d.lose()
	require.ErrorIs(t, d.takeIn(), failed)
	require.ErrorIs(t, d.keepAll(t.Context()), failed)
	require.False(t, d.owned[v4].busy)
	require.Equal(t, failed.Error(), d.row(v4).Problem)
	d.keeper.remove = remove
	d.clock += retryAssign
	require.ErrorIs(t, d.keepAll(t.Context()), failed)
	require.NoError(t, d.takeIn())
	require.False(t, d.has(v4))
}

// TestRemovedWhileHeld: an address that is about to be removed when votes for it come again comes
// back at once.
func TestRemovedWhileHeld(t *testing.T) {
	d := newDriven(t)
	goesOn := make(chan struct{})
	d.keeper.remove = func(addr netip.Addr) error { <-goesOn; return remove(addr) }
	d.lose()
	d.wants(v4, "node-1")
	d.tick()
	require.True(t, d.row(v4).Held)
	close(goesOn)
	require.NoError(t, d.takeIn())
	require.False(t, d.row(v4).Assigned)
	require.NoError(t, d.takeIn())
	require.True(t, d.row(v4).Assigned)
	require.True(t, d.has(v4))
}
