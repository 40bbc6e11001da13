// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"fmt"
	"net/netip"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath"
)

// newShares makes the maps of shares, as the programs declare them.
func newShares(t testing.TB) Shares {
	spec, err := datapath.Spec()
	require.NoError(t, err)
	open := func(name string) *ebpf.Map {
		s := spec.Maps[name]
		s.Pinning = ebpf.PinNone
		m, err := ebpf.NewMap(s)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	return Shares{Entries: open(bpf.SharesMap), Ports: open(bpf.PortsMap)}
}

// sharing is a fixture with counts of what pods have.
type sharing struct {
	*fixture
	shares Shares
}

func eachSharing(t *testing.T, test func(f *sharing)) {
	for _, method := range []Method{Iterator, Keys} {
		t.Run(string(method), func(t *testing.T) {
			requireRoot(t)
			maps, shares := newMaps(t, testRoom), newShares(t)
			require.NoError(t, bpf.SetRooms(shares.Entries, [bpf.LimitedMaps]uint32{
				testRoom, testRoom, testRoom, testRoom, testRoom, testRoom,
			}))
			c, err := OpenWith(maps, Extras{Shares: shares})
			require.NoError(t, err)
			c.always = method
			t.Cleanup(func() { require.NoError(t, c.Close()) })
			now, err := Now()
			require.NoError(t, err)
			test(&sharing{&fixture{TB: t, Maps: maps, Collector: c, now: now}, shares})
		})
	}
}

func shareOf(pod string, limited, reached uint32) bpf.ShareKey {
	k := bpf.ShareKey{Map: limited, Reached: reached}
	if pod != "" {
		k.Pod = bpf.AddressFrom(netip.MustParseAddr(pod))
	}
	return k
}

// use adds to a count, as the programs do.
func (f *sharing) use(k bpf.ShareKey, n uint32) {
	f.Helper()
	var v bpf.ShareValue
	if err := f.shares.Entries.Lookup(k, &v); err != nil {
		require.ErrorIs(f, err, ebpf.ErrKeyNotExist)
	}
	v.Used += n
	require.NoError(f, f.shares.Entries.Put(k, v))
}

// used returns the counts of pods.
func (f *sharing) used() map[bpf.ShareKey]uint32 {
	f.Helper()
	all, k, v := map[bpf.ShareKey]uint32{}, bpf.ShareKey{}, bpf.ShareValue{}
	entries := f.shares.Entries.Iterate()
	for entries.Next(&k, &v) {
		if k.Pod != (bpf.Address{}) {
			all[k] = v.Used
		}
	}
	require.NoError(f, entries.Err())
	return all
}

// TestSharesAreCountedAnew: after a pass each pod has what there is of it in the maps, whatever
// was counted before; what is created during the pass is added.
func TestSharesAreCountedAnew(t *testing.T) {
	eachSharing(t, func(f *sharing) {
		const a, b, c, host = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.200"
		connect := func(from, to string, n int, flags ctmap.TupleFlags, e ctmap.EntryFlags, lifetime uint32) {
			for i := range n {
				t := flow(unix.IPPROTO_TCP, fmt.Sprintf("%s:%d", from, 2000+i), to+":80")
				t.Flags = flags
				f.connect(t, ctmap.Entry{Lifetime: lifetime, Flags: e})
			}
		}
		live, over := f.now+1000, f.now-500
		connect(a, "192.0.2.1", 5, ctmap.Out, 0, live)
		connect(a, "192.0.2.2", 7, ctmap.Out, 0, over)
		connect("192.0.2.1", b, 3, ctmap.In, 0, live)
		connect(c, b, 4, ctmap.In, ctmap.OfPod, live)
		connect(host, b, 9, ctmap.In, ctmap.OfHost, live)
		udp := flow(unix.IPPROTO_UDP, "[2001:db8::1]:53", "[2001:db8::2]:53")
		f.connect(udp, ctmap.Entry{Lifetime: live})

		f.use(shareOf(a, bpf.LimitedCT4TCP, 0), 100)
		f.use(shareOf("10.0.0.9", bpf.LimitedCT4TCP, 0), 100)
		want := map[bpf.ShareKey]uint32{
			shareOf(a, bpf.LimitedCT4TCP, 0):             5,
			shareOf(b, bpf.LimitedCT4TCP, 1):             3,
			shareOf(c, bpf.LimitedCT4TCP, 0):             4,
			shareOf("2001:db8::1", bpf.LimitedCT6Any, 0): 1,
		}
		f.run(Filter{Expired: true, Orphans: true}) // may miss neighbors of what it removes
		for range 2 {
			f.run(Filter{Expired: true, Orphans: true})
			require.Equal(t, want, f.used())
		}
		_, err := f.Count()
		require.NoError(t, err)
		var all bpf.ShareValue
		require.NoError(t, f.shares.Entries.Lookup(shareOf("", bpf.LimitedCT4TCP, 0), &all))
		require.EqualValues(t, 5+3+4+9, all.Used, "of all, as the kernel counts")
		require.EqualValues(t, testRoom, all.Room)

		added := false
		f.run(Filter{Survivor: func(Entry) {
			if !added {
				f.use(shareOf(a, bpf.LimitedCT4TCP, 0), 2)
			}
			added = true
		}})
		want[shareOf(a, bpf.LimitedCT4TCP, 0)] = 7
		require.Equal(t, want, f.used())

		f.run(Filter{All: true})
		require.Empty(t, f.used())
	})
}

// TestPortsAreCountedAnew: the same of ports, of which the fullest are told.
func TestPortsAreCountedAnew(t *testing.T) {
	eachSharing(t, func(f *sharing) {
		const pods = 3
		server := func(i int) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 443)
		}
		// Of pod p are p+1 flows to each server of those with numbers up to 20*(p+1).
		flows := map[netip.AddrPort]int{}
		for p := range pods {
			for s := 1; s <= 20*(p+1); s++ {
				for i := range p + 1 {
					source := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(p + 1)}), uint16(1000*p+1000+i))
					t := ctmap.Tuple{Source: source, Destination: server(s), Protocol: unix.IPPROTO_TCP}
					f.connect(t, ctmap.Entry{Lifetime: f.now + 1000})
					f.pair(t, 0)
					flows[server(s)]++
				}
			}
		}
		// One of the host, which has the egress address itself.
		own := flow(unix.IPPROTO_TCP, "198.51.100.1:999", server(1).String())
		f.translate(own, own.Source, 0)

		for range 2 {
			f.run(Filter{Expired: true})
			totals := map[bpf.PortKey]bpf.ShareValue{}
			k, v := bpf.PortKey{}, bpf.ShareValue{}
			entries := f.shares.Ports.Iterate()
			for entries.Next(&k, &v) {
				require.Equal(t, "198.51.100.1", k.Egress.String())
				remote := netip.AddrPortFrom(k.Remote.Addr(), 443)
				if k.Pod == (bpf.Address{}) {
					require.EqualValues(t, flows[remote], v.Used, "%s", k)
					v.Room = 100
					totals[k] = v
				} else {
					require.EqualValues(t, k.Pod[15], v.Used, "%s", k)
				}
			}
			require.NoError(t, entries.Err())
			require.Len(t, totals, len(flows))
			for k, v := range totals {
				require.NoError(t, f.shares.Ports.Put(k, v))
			}
			require.EqualValues(t, 2*60*pods, f.used()[shareOf("10.0.0.3", bpf.LimitedNAT4, 0)])
			require.EqualValues(t, 1, f.used()[shareOf("198.51.100.1", bpf.LimitedNAT4, 0)])
		}
		fullest := f.Fullest()
		require.Len(t, fullest, fullestCount)
		for _, p := range fullest {
			require.Equal(t, 1+2+3, p.Used, "%s", p.Remote)
			require.Equal(t, 100, p.Room)
			require.LessOrEqual(t, p.Remote.Addr().As4()[3], byte(20))
			require.EqualValues(t, unix.IPPROTO_TCP, p.Protocol)
		}
		f.run(Filter{All: true})
		require.Empty(t, f.Fullest())
		require.Empty(t, f.used())
		require.False(t, f.shares.Ports.Iterate().Next(&bpf.PortKey{}, &bpf.ShareValue{}))
	})
}

// TestSharesTakeTheRoomOfPrograms holds what the programs' object and this package say of the
// sizes of the two maps to each other.
func TestSharesTakeTheRoomOfPrograms(t *testing.T) {
	spec, err := loadPrograms()
	require.NoError(t, err)
	for name, key := range map[string]uintptr{
		bpf.SharesMap: unsafe.Sizeof(bpf.ShareKey{}), bpf.PortsMap: unsafe.Sizeof(bpf.PortKey{}),
	} {
		require.EqualValues(t, key, spec.Maps[name].KeySize)
		require.EqualValues(t, unsafe.Sizeof(bpf.ShareValue{}), spec.Maps[name].ValueSize)
	}
}
