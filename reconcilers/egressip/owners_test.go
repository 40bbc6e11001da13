// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// sent is a message to a node.
type sent struct {
	to    netip.Addr
	frame []byte
}

// wire keeps what a node sends.
type wire struct{ frames []sent }

func (w *wire) Send(frame []byte, to netip.Addr) error {
	w.frames = append(w.frames, sent{to, slices.Clone(frame)})
	return nil
}

func (*wire) Close() error { return nil }

// TestOwnersAreTold: a node tells all others which addresses it has, at first some times and then
// from time to time, each time with a greater number, and believes others for a while.
func TestOwnersAreTold(t *testing.T) {
	w := newWorld(t)
	h, out := w.teller, &wire{}
	h.socket.open = func(frames.Overlay) (transport, error) { return out, nil }
	clock := uint64(1e9)
	h.now = func() uint64 { return clock }
	for i := range 3 {
		tablestest.Insert(t, w.db, w.Nodes.(statedb.RWTable[*tables.Node]), &tables.Node{
			Name:        fmt.Sprintf("node-%d", i+1),
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})},
		})
	}
	for range 10 * tellFirst {
		clock += 1e7
		require.NoError(t, h.tell([]netip.Addr{v4, v6}))
	}
	require.Len(t, out.frames, 2*tellFirst)
	last := uint64(0)
	for i, m := range out.frames {
		number := binary.NativeEndian.Uint64(m.frame[14:])
		require.Greater(t, number, last)
		last = number
		require.Equal(t, netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i%2)}), m.to)
	}
	clock += tellLater
	require.NoError(t, h.tell([]netip.Addr{v4, v6}))
	require.Len(t, out.frames, 2*tellFirst+2)
	require.NoError(t, h.tell([]netip.Addr{v4}))
	require.Len(t, out.frames, 2*tellFirst+4, "others at once")

	// In a large cluster it takes several ticks, and new addresses come first.
	out.frames = nil
	h.now = func() uint64 {
		clock += uint64(DefaultConfig.tick())
		return clock
	}
	require.NoError(t, h.tell([]netip.Addr{v4, v6}))
	require.Empty(t, out.frames)
	h.now = func() uint64 { return clock }
	require.NoError(t, h.tell([]netip.Addr{v6}))
	require.Len(t, out.frames, 2)
	for _, m := range out.frames {
		require.Equal(t, v6.AsSlice(), m.frame[len(m.frame)-16:])
	}

	owner := func() string {
		require.NoError(t, h.listen(nil))
		row, _, found := h.Owners.Get(w.db.ReadTxn(), tables.EgressIPOwnerByAddr(v6))
		if !found {
			return ""
		}
		return row.NodeAddr.String()
	}
	require.Empty(t, owner())
	require.ErrorIs(t, w.told.Lookup(keyOf(v6), &bpf.ToldValue{}), ebpf.ErrKeyNotExist)
	w.wants(v6, "node-2")
	require.Empty(t, owner())
	require.NoError(t, w.told.Update(keyOf(v6), bpf.ToldValue{
		Node: bpf.AddressFrom(netip.MustParseAddr("192.0.2.3")), At: clock}, ebpf.UpdateExist))
	require.Equal(t, "192.0.2.3", owner())
	clock += believedFor
	require.Empty(t, owner())
	require.NoError(t, h.listen([]netip.Addr{v6}))
	row, _, _ := h.Owners.Get(w.db.ReadTxn(), tables.EgressIPOwnerByAddr(v6))
	require.Equal(t, "192.0.2.1", row.NodeAddr.String())
	w.ips.Remove(&tables.EgressIP{Addr: v6})
	require.Empty(t, owner())
	require.ErrorIs(t, w.told.Lookup(keyOf(v6), &bpf.ToldValue{}), ebpf.ErrKeyNotExist)
}
