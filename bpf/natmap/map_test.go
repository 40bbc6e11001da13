// SPDX-License-Identifier: Apache-2.0

package natmap

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
)

// mapsDir returns the directory of pinned maps of a BPF file system of the
// test's own, or skips.
func mapsDir(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "bpffs")
	if err := bpf.Probe(path); err != nil {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") == "1" {
			t.Fatalf("kernel maps are not possible here: %v", err)
		}
		t.Skipf("kernel maps are not possible here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	return bpf.MapsDir(path)
}

// flow is a translation in tests: its two tuples and what they are to.
type flow struct {
	out, in ctmap.Tuple
	egress  netip.AddrPort
}

// example returns a flow for a map, the n-th.
func example(name string, n uint16, protocol uint8) flow {
	at := func(addr string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
	}
	pod, server, egress := at("10.0.0.1", 1000+n), at("192.0.2.7", 53), at("198.51.100.1", 2000+n)
	if name == Name6 {
		pod, server, egress = at("2001:db8::1", 1000+n), at("2001:db8::7", 53), at("2001:db8:ffff::1", 2000+n)
	}
	return flow{
		out:    ctmap.Tuple{Source: pod, Destination: server, Protocol: protocol, Flags: ctmap.Out},
		in:     ctmap.Tuple{Source: server, Destination: egress, Protocol: protocol, Flags: ctmap.In},
		egress: egress,
	}
}

func forEachMap(t *testing.T, f func(t *testing.T, dir, name string)) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) { f(t, mapsDir(t), name) })
	}
}

func openOrCreate(t *testing.T, dir, name string, maxEntries uint32, log *slog.Logger) Map {
	m, err := OpenOrCreate(dir, name, maxEntries, log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func TestEntriesOfMaps(t *testing.T) {
	forEachMap(t, func(t *testing.T, dir, name string) {
		m := openOrCreate(t, dir, name, 1000, nil)
		require.Equal(t, name, m.Name())
		require.FileExists(t, filepath.Join(dir, name))
		require.Equal(t, ebpf.LRUHash, m.Kernel().Type())
		require.EqualValues(t, map[string]int{Name4: 40, Name6: 56}[name], m.Kernel().ValueSize())

		for i, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			f := example(name, uint16(i), protocol)
			to := Translation{Created: 95e9, NeedsCT: 1, Used: 98, Tunnel: netip.MustParseAddr("10.9.9.9"), To: f.egress}
			require.NoError(t, m.Update(f.out, to))
			got, err := m.Lookup(f.out)
			require.NoError(t, err)
			require.Equal(t, to, got)
			require.NoError(t, m.Update(f.in, Translation{To: f.out.Source}))
		}
		count, err := m.Count()
		require.NoError(t, err)
		require.Equal(t, 4, count)
		pressure, err := m.Pressure()
		require.NoError(t, err)
		require.Equal(t, 4./1000, pressure)

		tcp := example(name, 0, unix.IPPROTO_TCP)
		records, err := m.Records(100, &ctmap.Match{Protocols: []ctmap.Protocol{unix.IPPROTO_TCP}})
		require.NoError(t, err)
		require.Len(t, records, 2)
		require.ElementsMatch(t, []ctmap.Tuple{tcp.out, tcp.in}, []ctmap.Tuple{records[0].Tuple(), records[1].Tuple()})
		lines, err := m.Dump(100)
		require.NoError(t, err)
		require.Len(t, lines, 4)
		require.Contains(t, lines, tcp.out.String()+" to="+tcp.egress.String()+" tunnel=10.9.9.9 age=5s idle=2s")

		require.NoError(t, m.Delete(tcp.out))
		exists, err := m.Exists(tcp.out)
		require.NoError(t, err)
		require.False(t, exists)
		_, err = m.Lookup(tcp.out)
		require.ErrorIs(t, err, ebpf.ErrKeyNotExist)
		require.ErrorContains(t, err, "map "+name+": look up "+tcp.out.String()+": ")
		require.ErrorIs(t, m.Delete(tcp.out), ebpf.ErrKeyNotExist)
	})
}

// Neither a tuple nor an address of the other family gets into a map.
func TestOtherFamily(t *testing.T) {
	forEachMap(t, func(t *testing.T, dir, name string) {
		m := openOrCreate(t, dir, name, 10, nil)
		own, other := example(name, 1, 6), example(map[string]string{Name4: Name6, Name6: Name4}[name], 1, 6)
		require.ErrorContains(t, m.Update(other.out, Translation{To: own.egress}), "address in a map of")
		require.ErrorContains(t, m.Update(own.out, Translation{To: other.egress}), "map "+name+": update "+own.out.String()+": translation to")
		require.Error(t, m.Update(own.out, Translation{}))
	})
}

func TestPinsAndProperties(t *testing.T) {
	forEachMap(t, func(t *testing.T, dir, name string) {
		_, err := Open(dir, name)
		require.ErrorIs(t, err, fs.ErrNotExist)
		f := example(name, 1, unix.IPPROTO_UDP)
		m := openOrCreate(t, dir, name, 100, nil)
		require.NoError(t, m.Update(f.out, Translation{Used: 7, To: f.egress}))

		var logged bytes.Buffer
		bigger := openOrCreate(t, dir, name, 200, slog.New(slog.NewTextHandler(&logged, nil)))
		require.Contains(t, logged.String(), "old-max-entries=100 max-entries=200 kept=1 lost=0")
		to, err := bigger.Lookup(f.out)
		require.NoError(t, err)
		require.EqualValues(t, 7, to.Used)

		require.NoError(t, bigger.Unpin())
		spec, err := Spec(name, 200)
		require.NoError(t, err)
		spec.ValueSize += 8
		other, err := ebpf.NewMap(spec)
		require.NoError(t, err)
		defer other.Close()
		require.NoError(t, other.Pin(ctmap.Path(dir, name)))
		_, err = OpenAll(dir)
		require.ErrorContains(t, err, "map "+name+": it is a LRUHash with keys")
		replaced := openOrCreate(t, dir, name, 200, nil)
		count, err := replaced.Count()
		require.NoError(t, err)
		require.Zero(t, count)
		require.NoError(t, replaced.Update(f.out, Translation{To: f.egress}))
		all, err := OpenAll(dir)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.NoError(t, all[0].Close())
	})
}

func TestHandleOfOpenMap(t *testing.T) {
	mapsDir(t)
	created, err := Create(Name6, 10)
	require.NoError(t, err)
	again, err := NewNamed("mine", Name6, created.Kernel())
	require.NoError(t, err)
	_, err = again.Lookup(example(Name6, 1, 6).out)
	require.ErrorContains(t, err, "map mine: look up ")
	_, err = New(Name4, created.Kernel())
	require.ErrorContains(t, err, "keys of 38 bytes and values of 56")
	require.NoError(t, again.Close())
	for _, name := range []string{"", ctmap.CT4TCP} {
		_, err := Open(t.TempDir(), name)
		require.ErrorContains(t, err, "not one of translations")
		_, err = Spec(name, 1)
		require.ErrorContains(t, err, "not one of translations")
	}
}

func TestRecord(t *testing.T) {
	f := example(Name4, 1, unix.IPPROTO_UDP)
	r := NewRecord(Name4, f.in, Translation{Created: 95_900_000_000, NeedsCT: 1, Used: 98, To: f.out.Source}, 100)
	b, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"map":"sluice_nat4","source":"192.0.2.7:53","destination":"198.51.100.1:2001","protocol":"udp",
		"direction":"in","to":"10.0.0.1:1001","needsCT":true,"ageSeconds":5,"idleSeconds":2}`, string(b))
	var back Record
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, r, back)
	require.Equal(t, f.in, back.Tuple())
	require.Equal(t, "udp 192.0.2.7:53 -> 198.51.100.1:2001 in to=10.0.0.1:1001 tunnel=- age=5s idle=2s", r.String())

	condemned := NewRecord(Name6, example(Name6, 1, 6).out, Translation{Tunnel: netip.MustParseAddr("fd00::9"), To: example(Name6, 1, 6).egress}, 100)
	require.Equal(t, "tcp [2001:db8::1]:1001 -> [2001:db8::7]:53 out to=[2001:db8:ffff::1]:2001 tunnel=fd00::9 age=- idle=- needs-ct=no condemned",
		condemned.String())
	require.EqualValues(t, ctmap.NotKnown, condemned.IdleSeconds)
	require.EqualValues(t, 0, NewRecord(Name4, f.in, Translation{Used: 105}, 100).IdleSeconds, "used since the clock was read")

	prefix := func(s string) *ctmap.Match { return &ctmap.Match{Prefixes: []netip.Prefix{netip.MustParsePrefix(s)}} }
	require.True(t, r.Matches(nil))
	require.True(t, r.Matches(&ctmap.Match{}))
	require.True(t, r.Matches(prefix("10.0.0.1/32")), "what it is to")
	require.True(t, r.Matches(prefix("198.51.100.0/24")))
	require.False(t, r.Matches(prefix("10.0.0.2/32")))
	require.True(t, r.Matches(&ctmap.Match{Ports: []uint16{1001}}))
	require.False(t, r.Matches(&ctmap.Match{Directions: []ctmap.Direction{ctmap.DirectionOut}}))
	for _, states := range []ctmap.Match{{Expired: true}, {States: []ctmap.State{ctmap.Condemned}}} {
		require.True(t, condemned.Matches(&states))
		require.False(t, r.Matches(&states))
	}
	require.False(t, condemned.Matches(&ctmap.Match{States: []ctmap.State{ctmap.Established}}))
}

// Both ways between what entries of a family say and their bytes.
func TestTranslation(t *testing.T) {
	to := Translation{Created: 1, NeedsCT: 1, Used: 2, Tunnel: netip.MustParseAddr("10.0.0.9"), To: netip.MustParseAddrPort("192.0.2.1:1024")}
	e4, err := NewEntry4(to)
	require.NoError(t, err)
	require.Equal(t, Entry4{Created: 1, NeedsCT: 1, Used: 2, Tunnel: bpf.AddressFrom(to.Tunnel), Addr: [4]byte{192, 0, 2, 1}, Port: ctmap.Port{4, 0}}, e4)
	require.Equal(t, to, e4.Translation())
	_, err = NewEntry6(to)
	require.ErrorContains(t, err, "translation to 192.0.2.1:1024: not IPv6")

	to.To = netip.MustParseAddrPort("[2001:db8::1]:1024")
	e6, err := NewEntry6(to)
	require.NoError(t, err)
	require.Equal(t, to, e6.Translation())
	_, err = NewEntry4(to)
	require.ErrorContains(t, err, "not IPv4")
	_, err = NewEntry6(Translation{})
	require.Error(t, err)
}
