// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// outcome is what has to become of the first packet of a flow: a drop for a
// reason, or a way.
type outcome struct {
	verdict packettest.Verdict
	reason  bpf.Reason // of a drop
	gateway netip.Addr // of a redirect to another node
	egress  netip.Addr // of a redirect to the outside
}

// policyState is what the maps say, in the simplest form.
type policyState struct {
	addresses packettest.Addresses
	ipcache   map[netip.Prefix]bpf.IPCacheFlags
	covered   map[netip.Prefix]bool
	egress    map[netip.Prefix]uint32 // of packettest.EgressRuleset
	gateways  map[uint32]bpf.GatewayValue
	subject   uint32 // packettest.Routed, packettest.Plain, or 0
	underlay  bpf.Address
}

func longest[V any](prefixes map[netip.Prefix]V, a netip.Addr) (value V, found bool) {
	bits := -1
	for p, v := range prefixes {
		if p.Contains(a) && p.Bits() > bits {
			bits, value, found = p.Bits(), v, true
		}
	}
	return value, found
}

// decide is the egress decision from first principles.
func (s *policyState) decide(to netip.Addr, translatable bpf.Reason) outcome {
	pass := outcome{verdict: packettest.Next}
	drop := func(r bpf.Reason) outcome { return outcome{verdict: packettest.Drop, reason: r} }
	if flags, _ := longest(s.ipcache, to); flags != 0 {
		return pass
	}
	if s.subject == 0 {
		if _, covered := longest(s.covered, to); covered {
			return drop(bpf.ReasonPodNotReady)
		}
		return pass
	}
	if s.subject == packettest.Plain {
		return pass
	}
	group, _ := longest(s.egress, to)
	if group == bpf.GroupExcluded {
		return pass
	}
	row := s.gateways[group]
	egress := netip.AddrFrom4(row.Egress4)
	if to.Is6() {
		egress = row.Egress6.Addr()
	}
	switch {
	case row.Gateway == bpf.Address{}:
		return drop(bpf.ReasonNoGateway)
	case translatable != 0:
		return drop(translatable)
	case row.Gateway != s.underlay:
		return outcome{verdict: packettest.Redirect, gateway: row.Gateway.Addr()}
	case !egress.IsValid() || egress.IsUnspecified():
		return drop(bpf.ReasonNoEgressIP)
	}
	return outcome{verdict: packettest.Redirect, egress: egress}
}

// randomState makes contents of the maps.
func randomState(f *fixture, random *rand.Rand) *policyState {
	s := &policyState{addresses: f.Addresses, underlay: f.Config.Underlay,
		ipcache: map[netip.Prefix]bpf.IPCacheFlags{}, covered: map[netip.Prefix]bool{}, egress: map[netip.Prefix]uint32{},
		gateways: map[uint32]bpf.GatewayValue{}}
	flags := []bpf.IPCacheFlags{0, bpf.IPCacheInCluster, bpf.IPCacheHost, bpf.IPCacheNode, bpf.IPCacheService | bpf.IPCacheInCluster, bpf.IPCachePod, bpf.IPCacheLocalScope}
	for range random.IntN(5) {
		s.ipcache[randomPrefix(f, random)] = flags[random.IntN(len(flags))]
	}
	for range random.IntN(6) {
		s.egress[randomPrefix(f, random)] = uint32(random.IntN(5))
	}
	for p := range s.egress {
		s.covered[p] = true
	}
	for range random.IntN(3) {
		s.covered[randomPrefix(f, random)] = true
	}
	rows := []bpf.GatewayValue{{}, f.Here(f.Egress), f.Here(f.SharedEgress), f.Here(), f.remote(second()), f.remote(third())}
	for group := uint32(1); group < 5; group++ {
		if i := random.IntN(len(rows) + 1); i < len(rows) {
			s.gateways[group] = rows[i]
		}
	}
	s.subject = []uint32{0, packettest.Plain, packettest.Routed, packettest.Routed}[random.IntN(4)]
	return s
}

// randomPrefix returns a prefix that contains one of the few addresses outside.
func randomPrefix(f *fixture, random *rand.Rand) netip.Prefix {
	a := randomDestination(f, random)
	bits := []int{0, 8, 16, 24, 25, 31, 32}
	if a.Is6() {
		bits = []int{0, 16, 32, 48, 50, 127, 128}
	}
	p, _ := a.Prefix(bits[random.IntN(len(bits))])
	return p
}

func randomDestination(f *fixture, random *rand.Rand) netip.Addr {
	all := []netip.Addr{f.Server, f.Server2, f.Excluded, f.Uncovered, f.RemotePod}
	return all[random.IntN(len(all))]
}

// write puts the state into the maps.
func (s *policyState) write(f *fixture, generation uint32) {
	f.Helper()
	for p, flags := range s.ipcache {
		require.NoError(f, f.SetIPCache(p, flags, netip.Addr{}))
	}
	for p := range s.covered {
		require.NoError(f, f.Cover(p))
	}
	for p, group := range s.egress {
		require.NoError(f, f.SetEgress(packettest.EgressRuleset, p, group))
	}
	for group, row := range s.gateways {
		require.NoError(f, f.SetBucket(group, packettest.Bucket(f.Pod), row))
	}
	require.NoError(f, f.SetRoute(packettest.Routed, packettest.EgressRuleset))
	require.NoError(f, f.SetPod(f.Pod, f.LocalPod(s.subject)))
	require.NoError(f, f.SetGeneration(generation))
}

// randomFirst returns the first packet of a flow, and why it cannot be translated.
func randomFirst(f *fixture, random *rand.Rand, to netip.Addr) (packet []byte, translatable bpf.Reason) {
	port := uint16(1024 + random.IntN(60000))
	frame := func(l ...packettest.Layer) []byte {
		return f.podFrame(append([]packettest.Layer{packettest.IP(f.Pod, to)}, l...)...)
	}
	switch random.IntN(6) {
	case 0:
		return frame(packettest.UDP{Src: port, Dst: 53}, packettest.Pattern(random.IntN(100))), 0
	case 1:
		return frame(packettest.Echo(f.Pod, false, port, 1), packettest.Pattern(random.IntN(100))), 0
	case 4:
		ip := packettest.Layer(packettest.IPv4{Src: f.Pod, Dst: to, Protocol: 132})
		if to.Is6() {
			ip = packettest.IPv6{Src: f.Pod, Dst: to, NextHeader: 132}
		}
		return f.podFrame(ip, packettest.Pattern(40)), bpf.ReasonUnsupportedProtocol
	case 5:
		whole := frame(packettest.UDP{Src: port, Dst: 53}, packettest.Pattern(900))
		return packettest.Fragments(whole, 800, uint32(random.IntN(1<<16)))[1], bpf.ReasonUnknownFragment
	default:
		return frame(packettest.TCP{Src: port, Dst: 443, Flags: packettest.SYN, MSS: 1400}), 0
	}
}

// TestDecision compares the way of first packets with the decision from first
// principles, on random contents of the maps.
func TestDecision(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			for seed := range rounds {
				random := rand.New(rand.NewPCG(uint64(seed), 1))
				f := newFixture(t, w)
				s := randomState(f, random)
				s.ipcache[netip.PrefixFrom(f.RemotePod, f.RemotePod.BitLen())] = bpf.IPCachePod
				s.write(f, packettest.Generation+1)
				for range 30 {
					to := randomDestination(f, random)
					packet, translatable := randomFirst(f, random, to)
					want := s.decide(to, translatable)
					f.requireOutcome(f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet}), want,
						fmt.Sprintf("seed %d: to %s, state %+v", seed, to, s))
				}
			}
		})
	}
}

func (f *fixture) requireOutcome(res *packettest.Result, want outcome, about string) {
	f.Helper()
	require.Equal(f, want.verdict, res.Verdict, "%s: %v", about, res.Reasons)
	switch {
	case want.verdict == packettest.Next:
		require.NotZero(f, res.Mark&packettest.MarkMask, about)
	case want.verdict == packettest.Drop:
		require.Equal(f, 1, res.Reasons[want.reason], "want %s, counted %v: %s", want.reason, res.Reasons, about)
	case want.gateway.IsValid():
		f.toGateway(res, want.gateway)
	default:
		f.translated(res, want.egress)
	}
}

// TestNeverPastPolicy: whatever state follows upon which, a packet of a pod to a
// destination that a policy of its covers leaves by a gateway or not at all.
func TestNeverPastPolicy(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) {
			for seed := range rounds {
				neverPastPolicy(t, w, rand.New(rand.NewPCG(uint64(seed), 2)), seed)
			}
		})
	}
}

func neverPastPolicy(t *testing.T, w packettest.Addresses, random *rand.Rand, seed int) {
	f := newFixture(t, w)
	destinations := []netip.Addr{f.Server, f.Server2, f.Excluded, f.Uncovered}
	known := map[bpf.Address]bool{bpf.AddressFrom(second()): true, bpf.AddressFrom(third()): true, f.Config.Underlay: true}
	for step := range 6 {
		for _, name := range []string{"sluice_egress", "sluice_routes", "sluice_covered", "sluice_gateways"} {
			require.NoError(f, f.Clear(name))
		}
		s := randomState(f, random)
		s.ipcache = map[netip.Prefix]bpf.IPCacheFlags{}
		s.write(f, uint32(packettest.Generation+1+step))
		require.NoError(f, f.SetNode(second(), bpf.NodeFlags(random.IntN(2))))
		for range 25 {
			to := destinations[random.IntN(len(destinations))]
			port := uint16(2000 + random.IntN(3)) // few, so that flows go on
			var layers []packettest.Layer
			switch random.IntN(4) {
			case 0:
				layers = udp(f.Pod, to, port, 53)
			case 1:
				layers = []packettest.Layer{packettest.IP(f.Pod, to), packettest.Echo(f.Pod, false, port, 1)}
			default:
				flags := []uint8{packettest.SYN, packettest.ACK, packettest.ACK, packettest.FIN | packettest.ACK, packettest.RST}
				layers = tcp(f.Pod, to, port, 443, flags[random.IntN(len(flags))])
			}
			packet := f.podFrame(layers...)
			res := f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: packet})
			about := fmt.Sprintf("seed %d, step %d: to %s, %v, state %+v", seed, step, to, res.Reasons, s)
			if want := s.decide(to, 0); want.verdict != packettest.Next {
				require.NotEqual(f, packettest.Next, res.Verdict, about)
			}
			switch {
			case res.Verdict != packettest.Redirect:
			case res.Tunnel != nil:
				require.True(f, known[bpf.AddressFrom(res.Tunnel.Remote)], about)
				require.Equal(f, f.Pod, f.parse(res).Src, about)
			default:
				require.Contains(f, []netip.Addr{f.Egress, f.SharedEgress}, f.parse(res).Src, about)
			}
		}
	}
}
