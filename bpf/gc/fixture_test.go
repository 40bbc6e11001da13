// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"net/netip"
	"os"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// requireRoot skips the test, or fails it where kernel tests must not be skipped.
func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") == "1" {
		t.Fatal("needs root")
	}
	t.Skip("needs root")
}

// fixture is a set of maps and who collects in it.
type fixture struct {
	testing.TB
	Maps
	*Collector
	now uint32
}

const testRoom = 10000

func newMap(t testing.TB, name string, key, value uintptr, room uint32) *ebpf.Map {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.LRUHash, KeySize: uint32(key), ValueSize: uint32(value), MaxEntries: room,
	})
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func newMaps(t testing.TB, room uint32) Maps {
	ct, key4, key6 := unsafe.Sizeof(ctmap.Entry{}), unsafe.Sizeof(ctmap.Key4{}), unsafe.Sizeof(ctmap.Key6{})
	return Maps{
		CT4TCP: newMap(t, ctmap.CT4TCP, key4, ct, room), CT4Any: newMap(t, ctmap.CT4Any, key4, ct, room),
		CT6TCP: newMap(t, ctmap.CT6TCP, key6, ct, room), CT6Any: newMap(t, ctmap.CT6Any, key6, ct, room),
		NAT4: newMap(t, natmap.Name4, key4, unsafe.Sizeof(natmap.Entry4{}), room),
		NAT6: newMap(t, natmap.Name6, key6, unsafe.Sizeof(natmap.Entry6{}), room),
	}
}

func (m *Maps) all() [mapCount]**ebpf.Map {
	return [mapCount]**ebpf.Map{&m.CT4TCP, &m.CT4Any, &m.CT6TCP, &m.CT6Any, &m.NAT4, &m.NAT6}
}

// byName returns the maps of a set by their names.
func byName(m Maps) map[string]*ebpf.Map {
	all := map[string]*ebpf.Map{}
	for i, m := range m.list(Shares{}) {
		if m != nil {
			all[names[i]] = m
		}
	}
	return all
}

// newFixture makes maps, and a collector that uses one method. It chooses itself if there is none.
func newFixture(t testing.TB, method Method) *fixture {
	return newFixtureOf(t, method, testRoom, func(string) bool { return true })
}

// newFixtureOf makes those maps that are needed, with room for so many entries each.
func newFixtureOf(t testing.TB, method Method, room uint32, needed func(name string) bool) *fixture {
	requireRoot(t)
	maps := newMaps(t, room)
	for i, m := range maps.all() {
		if !needed(names[i]) {
			*m = nil
		}
	}
	c, err := Open(maps)
	require.NoError(t, err)
	c.always = method
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	now, err := Now()
	require.NoError(t, err)
	return &fixture{TB: t, Maps: maps, Collector: c, now: now}
}

// eachMethod runs a test for each method.
func eachMethod(t *testing.T, test func(f *fixture)) {
	for _, method := range []Method{Iterator, Keys} {
		t.Run(string(method), func(t *testing.T) { test(newFixture(t, method)) })
	}
}

func flow(protocol uint8, from, to string) ctmap.Tuple {
	return ctmap.Tuple{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to), Protocol: protocol}
}

// connections has a flow of each kind.
var connections = map[string]ctmap.Tuple{
	"IPv4 TCP":  flow(unix.IPPROTO_TCP, "10.0.0.1:1000", "192.0.2.1:80"),
	"IPv4 UDP":  flow(unix.IPPROTO_UDP, "10.0.0.1:1000", "192.0.2.1:53"),
	"IPv4 ICMP": flow(unix.IPPROTO_ICMP, "10.0.0.1:77", "192.0.2.1:0"),
	"IPv6 TCP":  flow(unix.IPPROTO_TCP, "[2001:db8::1]:1000", "[2001:db8:1::1]:80"),
	"IPv6 UDP":  flow(unix.IPPROTO_UDP, "[2001:db8::1]:1000", "[2001:db8:1::1]:53"),
	"IPv6 ICMP": flow(unix.IPPROTO_ICMPV6, "[2001:db8::1]:77", "[2001:db8:1::1]:0"),
}

func (f *fixture) ct(t ctmap.Tuple) (*ebpf.Map, any) {
	tcp := t.Protocol == unix.IPPROTO_TCP
	switch {
	case t.Is6() && tcp:
		return f.CT6TCP, ctmap.NewKey6(t)
	case t.Is6():
		return f.CT6Any, ctmap.NewKey6(t)
	case tcp:
		return f.CT4TCP, ctmap.NewKey4(t)
	}
	return f.CT4Any, ctmap.NewKey4(t)
}

func (f *fixture) connect(t ctmap.Tuple, e ctmap.Entry) {
	f.Helper()
	m, key := f.ct(t)
	require.NoError(f, m.Put(key, e))
}

func (f *fixture) connected(t ctmap.Tuple) bool {
	f.Helper()
	var e ctmap.Entry
	m, key := f.ct(t)
	err := m.Lookup(key, &e)
	if err != nil {
		require.ErrorIs(f, err, ebpf.ErrKeyNotExist)
	}
	return err == nil
}

// nat returns the map of translations of a tuple, nil if there is none, and its key.
func (f *fixture) nat(t ctmap.Tuple) (*ebpf.Map, any) {
	if t.Is6() {
		return f.NAT6, natmap.NewKey6(t)
	}
	return f.NAT4, natmap.NewKey4(t)
}

// translate records what a tuple becomes, used so many seconds ago.
func (f *fixture) translate(t ctmap.Tuple, to netip.AddrPort, idle uint32) {
	f.Helper()
	f.translateNeeding(t, to, f.now-idle, 1)
}

func (f *fixture) translateNeeding(t ctmap.Tuple, to netip.AddrPort, used, needsCT uint32) {
	f.Helper()
	f.translateMade(t, to, uint64(used)*1e9, used, needsCT)
}

func (f *fixture) translateMade(t ctmap.Tuple, to netip.AddrPort, created uint64, used, needsCT uint32) {
	f.Helper()
	m, key := f.nat(t)
	port := ctmap.PortFrom(to.Port())
	if t.Is6() {
		require.NoError(f, m.Put(key, natmap.Entry6{Created: created, NeedsCT: needsCT, Used: used, Addr: to.Addr().As16(), Port: port}))
	} else {
		require.NoError(f, m.Put(key, natmap.Entry4{Created: created, NeedsCT: needsCT, Used: used, Addr: to.Addr().As4(), Port: port}))
	}
}

func (f *fixture) translated(t ctmap.Tuple) bool {
	f.Helper()
	m, key := f.nat(t)
	entry, err := m.LookupBytes(key)
	require.NoError(f, err)
	return entry != nil
}

// egress is what a flow leaves with.
func egress(t ctmap.Tuple) netip.AddrPort {
	addr := netip.MustParseAddr("198.51.100.1")
	if t.Is6() {
		addr = netip.MustParseAddr("2001:db8:2::1")
	}
	return netip.AddrPortFrom(addr, t.Source.Port()+1)
}

// replies is the tuple of the replies to a translated flow.
func replies(t ctmap.Tuple) ctmap.Tuple {
	return ctmap.Tuple{Source: t.Destination, Destination: egress(t), Protocol: t.Protocol, Flags: ctmap.In}
}

// pair records both translations of a flow.
func (f *fixture) pair(t ctmap.Tuple, idle uint32) {
	f.Helper()
	f.translate(t, egress(t), idle)
	f.translate(replies(t), t.Source, idle)
}

// run makes a pass and returns the sum of what it did.
func (f *fixture) run(filter Filter) (sum Pass) {
	f.Helper()
	passes, err := f.Run(f.Context(), filter)
	require.NoError(f, err)
	for _, p := range passes {
		require.Zero(f, p.Failed)
		require.Zero(f, p.Deferred)
		sum.add(p)
	}
	return sum
}

// add adds the counts of another map.
func (p *Pass) add(q Pass) {
	p.Scanned += q.Scanned
	p.Expired += q.Expired
	p.Translations += q.Translations
	p.Orphans += q.Orphans
	p.Released += q.Released
	p.Flushed += q.Flushed
	p.Condemned += q.Condemned
	p.Kept += q.Kept
	p.Revived += q.Revived
	p.Deferred += q.Deferred
	p.Failed += q.Failed
}

// requireEmpty requires that the maps have no entries.
func (f *fixture) requireEmpty() {
	f.Helper()
	counts, err := f.Count()
	require.NoError(f, err)
	for name, entries := range counts.Entries {
		require.Zero(f, entries, name)
	}
}

// flush removes everything: in two passes, but for what the iterator passes over.
func (f *fixture) flush() {
	f.Helper()
	for range 3 {
		if f.run(Filter{All: true}).Scanned == 0 {
			break
		}
	}
	f.requireEmpty()
}
