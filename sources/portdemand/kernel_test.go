// SPDX-License-Identifier: Apache-2.0

package portdemand

import (
	"net/netip"
	"os"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// TestKernel: of an address the destination counts where most ports are used, of all pods. Each
// connection has its source, of whichever direction its record is.
func TestKernel(t *testing.T) {
	maps := map[string]*ebpf.Map{}
	k := kernel{maps: func(name string) *ebpf.Map { return maps[name] }}
	_, loaded, err := k.used()
	require.NoError(t, err)
	require.False(t, loaded)
	require.NoError(t, k.translations(func(netip.AddrPort) { t.Fatal("there are no maps") }))

	for name, spec := range map[string]func() (*ebpf.MapSpec, error){
		natmap.Name4: func() (*ebpf.MapSpec, error) { return natmap.Spec(natmap.Name4, 1024) },
		natmap.Name6: func() (*ebpf.MapSpec, error) { return natmap.Spec(natmap.Name6, 1024) },
		bpf.PortsMap: func() (*ebpf.MapSpec, error) {
			return &ebpf.MapSpec{
				Type: ebpf.Hash, MaxEntries: 1024, KeySize: uint32(unsafe.Sizeof(bpf.PortKey{})),
				ValueSize: uint32(unsafe.Sizeof(bpf.ShareValue{})),
			}, nil
		},
	} {
		s, err := spec()
		require.NoError(t, err)
		m, err := ebpf.NewMap(s)
		if err != nil {
			require.Empty(t, os.Getenv("SLUICE_REQUIRE_PRIVILEGED"), "BPF maps are not possible here: %v", err)
			t.Skipf("BPF maps are not possible here: %v", err)
		}
		t.Cleanup(func() { m.Close() })
		maps[name] = m
	}
	addr6 := netip.MustParseAddr("2001:db8::9")
	for key, used := range map[bpf.PortKey]uint32{
		{Egress: bpf.AddressFrom(addr), Protocol: 6}:                              7,
		{Egress: bpf.AddressFrom(addr), Protocol: 17}:                             9,
		{Egress: bpf.AddressFrom(addr), Protocol: 1}:                              8,
		{Egress: bpf.AddressFrom(addr), Protocol: 6, Pod: bpf.AddressFrom(addr6)}: 50,
		{Egress: bpf.AddressFrom(addr6), Protocol: 6, Port: [2]byte{0, 80}}:       1,
	} {
		require.NoError(t, maps[bpf.PortsMap].Put(key, bpf.ShareValue{Used: used, Found: 99}))
	}
	most, loaded, err := k.used()
	require.NoError(t, err)
	require.True(t, loaded)
	require.Equal(t, map[netip.Addr]int{addr: 9, addr6: 1}, most)

	put := func(name, from, to, translated string, flags ctmap.TupleFlags) {
		m, err := natmap.New(name, maps[name])
		require.NoError(t, err)
		require.NoError(t, m.Update(ctmap.Tuple{
			Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to),
			Protocol: 6, Flags: flags,
		}, natmap.Translation{To: netip.MustParseAddrPort(translated)}))
	}
	put(natmap.Name4, "10.0.0.1:1", "192.0.2.1:443", "203.0.113.9:2000", ctmap.Out)
	put(natmap.Name4, "192.0.2.1:443", "203.0.113.9:2001", "10.0.0.1:1", ctmap.In)
	put(natmap.Name6, "[fd00::1]:1", "[2001:db8::1]:443", "[2001:db8::9]:3000", ctmap.Out)
	put(natmap.Name6, "[2001:db8::1]:443", "[2001:db8::9]:3001", "[fd00::1]:1", ctmap.In)
	var sources []string
	require.NoError(t, k.translations(func(s netip.AddrPort) { sources = append(sources, s.String()) }))
	require.ElementsMatch(t, []string{
		"203.0.113.9:2000", "203.0.113.9:2001", "[2001:db8::9]:3000", "[2001:db8::9]:3001",
	}, sources)
}
