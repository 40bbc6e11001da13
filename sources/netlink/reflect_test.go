// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// dump renders a state, one line a row.
func dump(s State) string {
	var b strings.Builder
	lines(&b, s.Devices)
	lines(&b, s.Addresses)
	lines(&b, s.Routes)
	lines(&b, s.Neighbours)
	lines(&b, s.BridgeEntries)
	return b.String()
}

func lines[Row statedb.TableWritable](b *strings.Builder, rows []Row) {
	for _, r := range rows {
		fmt.Fprintf(b, "%T %s\n", r, strings.Join(r.TableRow(), " "))
	}
}

func sampleState() State {
	return State{
		Devices: []*tables.Device{
			{Index: 1, Name: "lo", Type: "loopback", Up: true, PeerNetNSID: -1},
			{Index: 2, Name: "eth0", AltNames: []string{"enp0s1"}, Type: "device", Up: true, MTU: 1500, PeerNetNSID: -1},
		},
		Addresses: []*tables.NodeAddress{
			{Addr: netip.MustParseAddr("10.0.0.9"), Prefix: netip.MustParsePrefix("10.0.0.0/24"), DeviceIndex: 2},
			{Addr: netip.MustParseAddr("10.0.0.5"), Prefix: netip.MustParsePrefix("10.0.0.0/24"), DeviceIndex: 2, Secondary: true},
			{Addr: netip.MustParseAddr("fd00::5"), Prefix: netip.MustParsePrefix("fd00::/64"), DeviceIndex: 2},
		},
		Routes: []*tables.Route{
			{Table: 254, Destination: netip.MustParsePrefix("0.0.0.0/0"), DeviceIndex: 2, Gateway: netip.MustParseAddr("10.0.0.1"), Type: "unicast"},
			{Table: 255, Destination: netip.MustParsePrefix("10.0.0.9/32"), DeviceIndex: 2, Type: "local"},
		},
		Neighbours:    []*tables.Neighbour{{DeviceIndex: 2, Addr: netip.MustParseAddr("10.0.0.1"), MAC: "02:00:00:00:00:01"}},
		BridgeEntries: []*tables.BridgeEntry{{BridgeIndex: 3, DeviceIndex: 2, MAC: "02:00:00:00:00:02"}},
	}
}

func TestFakeSetsTables(t *testing.T) {
	var fake *Fake
	v := start(t, FakeCell, cell.Invoke(func(f *Fake) { fake = f }))
	v.await(t, "initialized and empty", func(s State) bool { return v.initialized() && dump(s) == "" })

	fake.Set(sampleState())
	v.await(t, "all rows", func(s State) bool { return len(s.Devices) == 2 && len(s.BridgeEntries) == 1 })
	txn := v.DB.ReadTxn()
	first, _, found := v.Addresses.Get(txn, tables.NodeAddressByID(tables.NodeAddressID{Addr: netip.MustParseAddr("10.0.0.9"), DeviceIndex: 2}))
	require.True(t, found)
	require.Equal(t, "eth0", first.Device, "an address bears the name of its device")
	require.Zero(t, first.Order)
	second, _, found := v.Addresses.Get(txn, tables.NodeAddressesByAddr(netip.MustParseAddr("10.0.0.5")))
	require.True(t, found)
	require.Equal(t, 1, second.Order)
	v6, _, _ := v.Addresses.Get(txn, tables.NodeAddressesByAddr(netip.MustParseAddr("fd00::5")))
	require.Zero(t, v6.Order, "families are counted each by itself")

	renamed := sampleState()
	renamed.Devices[1].Name = "uplink"
	fake.Set(renamed)
	v.await(t, "renamed", func(s State) bool { return len(s.Addresses) == 3 && s.Addresses[0].Device == "uplink" })

	fake.Set(State{})
	v.await(t, "empty again", func(s State) bool { return dump(s) == "" })
}

// countingKernel counts what is asked of a kernel, and may refuse it.
type countingKernel struct {
	kernel
	lists      atomic.Int32
	subscribes atomic.Int32
	refuse     error
	problems   error
}

func (k *countingKernel) list(ctx context.Context, want kinds) (*listing, error) {
	l, err := k.kernel.list(ctx, want)
	if l != nil {
		l.problems = k.problems
	}
	k.lists.Add(1)
	return l, err
}

func (k *countingKernel) subscribe() (feed, error) {
	defer k.subscribes.Add(1) // after it: who waits for it may break what there is
	if k.refuse != nil {
		return nil, k.refuse
	}
	return k.kernel.subscribe()
}

// startWith runs the cell over any kernel.
func startWith(t testing.TB, k kernel, resync time.Duration) *views {
	return start(t, cell.Module("netlink", "Devices addresses routes and neighbours",
		tableCells,
		cell.ProvidePrivate(
			func() kernel { return k },
			func() resyncInterval { return resyncInterval(resync) },
		),
		cell.Invoke(register),
	))
}

func TestResyncWithoutChangeWritesNothing(t *testing.T) {
	fake := NewFake()
	fake.Set(sampleState())
	k := &countingKernel{kernel: fake}
	v := startWith(t, k, 5*time.Millisecond)
	v.await(t, "initialized", func(State) bool { return v.initialized() })
	before, listed := v.revisions(), k.lists.Load()
	v.await(t, "listed again", func(State) bool { return k.lists.Load() > listed+3 })
	require.Equal(t, before, v.revisions())
	require.EqualValues(t, 1, k.subscribes.Load())
}

func TestResyncFindsMissedChange(t *testing.T) {
	fake := NewFake()
	fake.Set(sampleState())
	v := startWith(t, fake, 20*time.Millisecond)
	v.await(t, "initialized", func(State) bool { return v.initialized() })

	fake.mu.Lock() // a change that is not announced
	fake.state.Neighbours = nil
	fake.mu.Unlock()
	v.await(t, "the neighbour is gone", func(s State) bool { return len(s.Neighbours) == 0 && len(s.Devices) == 2 })
}

func TestLostFeedIsResubscribed(t *testing.T) {
	fake := NewFake()
	fake.Set(sampleState())
	k := &countingKernel{kernel: fake}
	v := startWith(t, k, time.Hour)
	v.await(t, "initialized", func(State) bool { return v.initialized() })
	before := v.revisions()

	for i := range int32(3) {
		fake.mu.Lock() // lost with the feed
		fake.state.Routes = fake.state.Routes[:len(fake.state.Routes)-min(1, int(i))]
		fake.mu.Unlock()
		fake.Break(unix.ENOBUFS)
		v.await(t, "subscribed again", func(State) bool {
			return k.subscribes.Load() == i+2 && v.healthy()
		})
	}
	v.await(t, "the lost change is found", func(s State) bool { return len(s.Routes) == 0 })
	after := v.revisions()
	require.Equal(t, before[0], after[0], "devices did not change")

	fake.Set(State{})
	v.await(t, "followed again", func(s State) bool { return dump(s) == "" })
}

func TestHealthWhileLost(t *testing.T) {
	fake := NewFake()
	k := &failingKernel{kernel: fake}
	k.fails.Store(true)
	v := startWith(t, k, time.Hour)
	v.await(t, "degraded", func(State) bool {
		level, err := v.health()
		return level == cell.StatusDegraded && errors.Is(err, unix.ENOMEM)
	})
	require.False(t, v.initialized(), "a listing that failed is no listing")
	k.fails.Store(false)
	v.await(t, "recovered", func(State) bool { return v.initialized() && v.healthy() })
}

type failingKernel struct {
	kernel
	fails atomic.Bool
}

func (k *failingKernel) list(ctx context.Context, want kinds) (*listing, error) {
	if k.fails.Load() {
		return nil, fmt.Errorf("list: %w", unix.ENOMEM)
	}
	return k.kernel.list(ctx, want)
}

func TestRefusedStillInitializes(t *testing.T) {
	fake := NewFake()
	fake.Set(sampleState())
	k := &countingKernel{
		kernel:   fake,
		refuse:   fmt.Errorf("subscribe: %w", unix.EPERM),
		problems: fmt.Errorf("list routes: %w", unix.EACCES),
	}
	v := startWith(t, k, 10*time.Millisecond)
	v.await(t, "initialized and degraded", func(s State) bool {
		level, err := v.health()
		return v.initialized() && level == cell.StatusDegraded && errors.Is(err, unix.EPERM) && errors.Is(err, unix.EACCES)
	})
	fake.Set(State{})
	v.await(t, "polled", func(s State) bool { return dump(s) == "" })
}
