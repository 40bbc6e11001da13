// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// flushed are maps that are flushed.
type flushed struct {
	t   *testing.T
	ct  map[string]ctmap.Map
	nat map[string]natmap.Map
	set gc.Maps
}

func newFlushed(t *testing.T) *flushed {
	if os.Geteuid() != 0 {
		const reason = "needs root to make maps"
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") != "" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	f := &flushed{t, map[string]ctmap.Map{}, map[string]natmap.Map{}, gc.Maps{}}
	for _, name := range ctmap.Names() {
		m, err := ctmap.Create(name, 1024)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		f.ct[name] = m
	}
	for _, name := range natmap.Names() {
		m, err := natmap.Create(name, 1024)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		f.nat[name] = m
	}
	f.set = gc.Maps{
		CT4TCP: f.ct[ctmap.CT4TCP].Kernel(), CT4Any: f.ct[ctmap.CT4Any].Kernel(),
		CT6TCP: f.ct[ctmap.CT6TCP].Kernel(), CT6Any: f.ct[ctmap.CT6Any].Kernel(),
		NAT4: f.nat[natmap.Name4].Kernel(), NAT6: f.nat[natmap.Name6].Kernel(),
	}
	return f
}

func flow(protocol uint8, from, to string, flags ctmap.TupleFlags) ctmap.Tuple {
	return ctmap.Tuple{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to), Protocol: protocol, Flags: flags}
}

// connect adds a live connection, and its translation if it has one.
func (f *flushed) connect(t ctmap.Tuple, to string) {
	require.NoError(f.t, f.ct[ctmap.CTName(t.Is6(), t.Protocol)].Update(t, ctmap.Entry{Lifetime: 1<<32 - 1, Packets: 3}))
	if to == "" {
		return
	}
	nat := f.nat[natmap.Name4]
	if t.Is6() {
		nat = f.nat[natmap.Name6]
	}
	addr := netip.MustParseAddrPort(to)
	out := t
	out.Flags = ctmap.Out
	require.NoError(f.t, nat.Update(out, natmap.Translation{NeedsCT: 1, Used: 9, To: addr}))
	in := ctmap.Tuple{Source: t.Destination, Destination: addr, Protocol: t.Protocol, Flags: ctmap.In}
	require.NoError(f.t, nat.Update(in, natmap.Translation{NeedsCT: 1, Used: 9, To: t.Source}))
}

func (f *flushed) flush(
	ctx context.Context, chosen func(gc.Entry) bool, removed func(gc.Entry),
) ([]gc.Pass, error) {
	c, err := gc.Open(f.set)
	require.NoError(f.t, err)
	defer c.Close()
	return c.Flush(ctx, chosen, removed)
}

// left returns what is in all maps.
func (f *flushed) left() (left []string) {
	for name, m := range f.ct {
		require.NoError(f.t, m.Each(func(t ctmap.Tuple, _ ctmap.Entry) bool {
			left = append(left, name+" "+t.String())
			return true
		}))
	}
	for name, m := range f.nat {
		require.NoError(f.t, m.Each(func(t ctmap.Tuple, _ natmap.Translation) bool {
			left = append(left, name+" "+t.String())
			return true
		}))
	}
	slices.Sort(left)
	return left
}

// What is chosen goes with both halves of its translation, of each family and
// protocol; the rest stays, and so does the translation of a connection that was
// begun towards the pod.
func TestFlush(t *testing.T) {
	f := newFlushed(t)
	f.connect(flow(unix.IPPROTO_TCP, "10.1.0.5:1000", "192.0.2.7:443", ctmap.Out), "203.0.113.1:1024")
	f.connect(flow(unix.IPPROTO_UDP, "10.1.0.5:1001", "192.0.2.7:53", ctmap.Out), "203.0.113.1:1025")
	f.connect(flow(unix.IPPROTO_ICMP, "10.1.0.5:77", "192.0.2.7:0", ctmap.Out), "203.0.113.1:1026")
	f.connect(flow(unix.IPPROTO_TCP, "[fd00::5]:1000", "[2001:db8::7]:443", ctmap.Out), "[2001:db8:1::1]:1024")
	f.connect(flow(unix.IPPROTO_ICMPV6, "[fd00::5]:78", "[2001:db8::7]:0", ctmap.Out), "[2001:db8:1::1]:1025")
	f.connect(flow(unix.IPPROTO_TCP, "10.1.0.6:1000", "192.0.2.7:443", ctmap.Out), "203.0.113.1:1027")
	f.connect(flow(unix.IPPROTO_TCP, "10.1.0.5:2000", "10.1.0.6:80", ctmap.In), "203.0.113.1:1028")
	require.NoError(t, f.ct[ctmap.CT4TCP].Update(flow(unix.IPPROTO_TCP, "10.1.0.5:9", "192.0.2.7:9", ctmap.Out), ctmap.Entry{}))

	owned := []netip.Addr{netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("fd00::5")}
	var removed []gc.Entry
	passes, err := f.flush(t.Context(),
		func(e gc.Entry) bool { return slices.Contains(owned, e.Tuple.Source.Addr()) },
		func(e gc.Entry) { removed = append(removed, e) })
	require.NoError(t, err)
	require.Equal(t, []string{
		"sluice_ct4_tcp tcp 10.1.0.5:9 -> 192.0.2.7:9 out", // is condemned: absent already
		"sluice_ct4_tcp tcp 10.1.0.6:1000 -> 192.0.2.7:443 out",
		"sluice_nat4 tcp 10.1.0.5:2000 -> 10.1.0.6:80 out",
		"sluice_nat4 tcp 10.1.0.6:1000 -> 192.0.2.7:443 out",
		"sluice_nat4 tcp 10.1.0.6:80 -> 203.0.113.1:1028 in",
		"sluice_nat4 tcp 192.0.2.7:443 -> 203.0.113.1:1027 in",
	}, f.left())
	type counts struct{ scanned, flushed, translations uint64 }
	got := map[string]counts{}
	for _, p := range passes {
		require.Zero(t, p.Failed)
		got[p.Map] = counts{p.Scanned, p.Flushed, p.Translations}
	}
	require.Equal(t, map[string]counts{
		ctmap.CT4TCP: {4, 2, 2}, ctmap.CT4Any: {2, 2, 4}, ctmap.CT6TCP: {1, 1, 2}, ctmap.CT6Any: {1, 1, 2},
	}, got)

	require.Len(t, removed, 6+10, "each once")
	for _, e := range removed {
		require.Equal(t, gc.Flushed, e.Reason)
		require.NotEqual(t, e.CT == nil, e.NAT == nil)
		if e.CT != nil {
			require.EqualValues(t, 3, e.CT.Packets, "with its final value")
		}
	}
	require.Equal(t, "203.0.113.1:1024", translationOf(removed, "tcp 10.1.0.5:1000 -> 192.0.2.7:443 out"))
	require.Equal(t, "10.1.0.5:1000", translationOf(removed, "tcp 192.0.2.7:443 -> 203.0.113.1:1024 in"))
}

func translationOf(entries []gc.Entry, tuple string) string {
	for _, e := range entries {
		if e.NAT != nil && e.Tuple.String() == tuple {
			return e.NAT.To.String()
		}
	}
	return ""
}

func TestFlushEnds(t *testing.T) {
	f := newFlushed(t)
	f.connect(flow(unix.IPPROTO_TCP, "10.1.0.5:1000", "192.0.2.7:443", ctmap.Out), "203.0.113.1:1024")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	passes, err := f.flush(ctx, func(gc.Entry) bool { return true }, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, passes, 1)
	require.Len(t, f.left(), 3, "nothing was removed")

	f.set.NAT4 = nil
	_, err = f.flush(t.Context(), func(gc.Entry) bool { return true }, nil)
	require.NoError(t, err)
	require.Len(t, f.left(), 2, "maps that do not exist are left out")
}
