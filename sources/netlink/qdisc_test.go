// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// qdiscMessage is what the kernel says of a queueing discipline.
func qdiscMessage(q qdisc) []byte {
	return slices.Concat(u32(0), u32(uint32(q.device)), u32(q.handle), u32(q.parent), u32(0),
		attr(unix.TCA_KIND, append([]byte(q.kind), 0)...))
}

func TestDecodeQdisc(t *testing.T) {
	q := qdisc{device: 7, handle: 1 << 16, parent: parentRoot, kind: "fq"}
	whole := qdiscMessage(q)
	decoded, err := decodeQdisc(whole)
	require.NoError(t, err)
	require.Equal(t, q, decoded)
	for _, cut := range []int{0, 19, len(whole) - 4} {
		_, err := decodeQdisc(whole[:cut])
		require.ErrorIs(t, err, errTruncated, "cut at %d", cut)
	}
}

// Any change of what a device sends by makes the devices stale, and what it receives by does not.
func TestDecodeQdiscEvent(t *testing.T) {
	for _, typ := range []uint16{unix.RTM_NEWQDISC, unix.RTM_DELQDISC} {
		for parent, want := range map[uint32]kinds{
			parentRoot: devices, 1<<16 | 1: devices, 1: devices, parentIngress: 0,
		} {
			ev, err := decodeEvent(syscall.NetlinkMessage{
				Header: syscall.NlMsghdr{Type: typ},
				Data:   qdiscMessage(qdisc{device: 2, parent: parent, kind: "fq"}),
			})
			require.NoError(t, err)
			require.Equal(t, event{stale: want}, ev, "parent %#x", parent)
		}
	}
}

// Of a device with several queues their queueing disciplines count, whether they were made by hand
// (with a handle) or the kernel by default.
func TestQdiscsOfQueues(t *testing.T) {
	const made = 0x80010000
	all := []qdisc{
		{2, 0, parentRoot, "mq"}, {2, 0, 1, "fq"}, {2, 0, 2, "fq"},
		{2, 0xffff0000, parentIngress, "clsact"},
		{3, made, parentRoot, "mq"}, {3, 5 << 16, made | 1, "fq"}, {3, 0, made | 2, "pfifo_fast"},
		{4, 0, parentRoot, "mq"},
		{5, 1 << 16, parentRoot, "htb"}, {5, 2 << 16, 1<<16 | 1, "fq"},
		{6, made, parentRoot, "mq"}, {6, 0, made | 1, "fq"}, {6, 7 << 16, 9<<16 | 1, "pfifo"},
	}
	for device, want := range map[int][]string{
		2: {"fq"}, 3: {"fq", "pfifo_fast"}, 4: {"mq"}, 5: {"mq"}, 6: {"fq"}, 7: {"mq"},
	} {
		require.Equal(t, want, ofQueues(device, all), "device %d", device)
		paces := (&tables.Device{Qdiscs: want}).Paces()
		require.Equal(t, slices.Contains([]int{2, 6}, device), paces, "device %d", device)
	}
	require.False(t, (&tables.Device{}).Paces())
}

// The queueing disciplines of a device are those that the kernel has, also after changes that only
// their own messages announce. A message about the device leaves those of its queues.
func TestKernelQdiscs(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	v := n.start()
	require.NoError(t, n.LinkAdd(&vn.Veth{
		LinkAttrs: vn.LinkAttrs{Name: "eth0", NumTxQueues: 2}, PeerName: "peer0",
	}))
	require.NoError(t, n.LinkSetUp(n.link("eth0")))
	index := n.index("eth0")
	await := func(what string, want ...string) {
		t.Helper()
		v.await(t, what, func(State) bool {
			d, _, found := v.Devices.Get(v.DB.ReadTxn(), tables.DeviceByIndex(index))
			return found && slices.Equal(d.Qdiscs, want)
		})
	}
	set := func(change func(vn.Qdisc) error, kind string, handle, parent uint32) {
		t.Helper()
		require.NoError(t, change(&vn.GenericQdisc{QdiscType: kind, QdiscAttrs: vn.QdiscAttrs{
			LinkIndex: index, Handle: handle, Parent: parent,
		}}))
	}
	await("none", "noqueue")
	set(n.QdiscReplace, "pfifo", 0, vn.HANDLE_ROOT)
	await("of the root", "pfifo")
	set(n.QdiscReplace, "mq", vn.MakeHandle(1, 0), vn.HANDLE_ROOT)
	for queue := range uint16(2) {
		set(n.QdiscReplace, "pfifo", 0, vn.MakeHandle(1, queue+1))
	}
	await("of both queues", "pfifo")
	set(n.QdiscReplace, "bfifo", 0, vn.MakeHandle(1, 2))
	await("that differ", "bfifo", "pfifo")
	require.NoError(t, n.LinkSetMTU(n.link("eth0"), 1400))
	v.await(t, "the MTU, and nothing else", func(State) bool {
		d, _, found := v.Devices.Get(v.DB.ReadTxn(), tables.DeviceByIndex(index))
		require.Equal(t, []string{"bfifo", "pfifo"}, d.Qdiscs)
		return found && d.MTU == 1400
	})
	set(n.QdiscDel, "mq", vn.MakeHandle(1, 0), vn.HANDLE_ROOT)
	await("none again", "noqueue")
}

// A message about a device with several queues leaves what is known of these, and has it read
// again.
func TestDeviceWithQueuesIsListed(t *testing.T) {
	s, p := newTestStore(t)
	l := sampleListing()
	l.Devices[1].Qdiscs = []string{"fq"}
	_, err := s.write(l, nil)
	require.NoError(t, err)
	announce := func(index int, qdisc string) kinds {
		t.Helper()
		stale, err := s.write(nil, []event{{row: &tables.Device{
			Index: index, Name: "eth0", MTU: 9000, Qdiscs: []string{qdisc},
		}}})
		require.NoError(t, err)
		return stale
	}
	qdiscs := func(index int) []string {
		d, _, found := p.Devices.Get(p.DB.ReadTxn(), tables.DeviceByIndex(index))
		require.True(t, found)
		require.Equal(t, 9000, d.MTU)
		return d.Qdiscs
	}
	require.True(t, announce(2, "mq").has(devices))
	require.Equal(t, []string{"fq"}, qdiscs(2))
	require.True(t, announce(3, "mq").has(devices))
	require.Equal(t, []string{"mq"}, qdiscs(3))
	require.False(t, announce(2, "noqueue").has(devices))
	require.Equal(t, []string{"noqueue"}, qdiscs(2))
}
