// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// judgedWorld is one of few numbers, prefixes and ports, so that many verdicts meet. Some of
// what numbers refer to is missing.
func judgedWorld(r *rand.Rand, w packettest.Addresses) packettest.PolicyWorld {
	world := packettest.PolicyWorld{
		Pods:     map[bpf.PodKey]bpf.PodValue{},
		IPCache:  map[bpf.IPCacheKey]bpf.IPCacheValue{},
		Subjects: map[bpf.SubjectKey]bpf.SubjectValue{},
		Peers:    map[bpf.PeerKey]bpf.PeerValue{},
		Policy:   map[bpf.PolicyKey]bpf.PolicyValue{},
		Verdicts: map[bpf.VerdictKey]bpf.VerdictValue{},
	}
	for _, pod := range []netip.Addr{w.Pod, w.OtherPod} {
		flags := bpf.PodLocal
		if r.IntN(10) == 0 {
			flags = 0
		}
		world.Pods[bpf.PodKey{Addr: bpf.AddressFrom(pod)}] = bpf.PodValue{
			Subject: 1 + r.Uint32N(4), Flags: flags,
		}
	}
	for subject := range uint32(3) {
		world.Subjects[bpf.SubjectKey{Subject: 1 + subject}] = bpf.SubjectValue{
			Ruleset: bpf.EmptyRuleset + r.Uint32N(3),
		}
	}
	all := netip.PrefixFrom(w.Pod, 0).Masked()
	for _, p := range []netip.Prefix{
		all, w.Cluster, w.Covered, w.CoveredExclusion,
		netip.PrefixFrom(w.Server, w.Server.BitLen()), netip.PrefixFrom(w.RemotePod, w.Pod.BitLen()),
	} {
		if p == all && r.IntN(4) == 0 {
			continue
		}
		world.IPCache[bpf.IPCacheKeyFrom(p)] = bpf.IPCacheValue{Member: r.Uint32N(5)}
	}
	world.IPCache[bpf.IPCacheKeyFrom(w.Services)] = bpf.IPCacheValue{
		Member: r.Uint32N(5), Flags: bpf.IPCacheService,
	}
	for member := range uint32(4) {
		world.Peers[bpf.PeerKey{Member: member}] = bpf.PeerValue{Class: r.Uint32N(4)}
	}
	for range 14 {
		k := bpf.PolicyKey{
			Ruleset: bpf.EmptyRuleset + 1 + r.Uint32N(2), Class: r.Uint32N(4),
			Direction: bpf.Direction(r.IntN(2)),
		}
		world.Policy[k] = bpf.PolicyValue{Set: r.Uint32N(5)}
	}
	for range 60 {
		var protocol uint8
		if r.IntN(4) > 0 {
			protocol = judgedProtocols[r.IntN(len(judgedProtocols))]
		}
		k := bpf.VerdictKeyOf(
			r.Uint32N(4), protocol, uint16(r.IntN(256)), []int{0, 8, 12, 15, 16}[r.IntN(5)],
		)
		world.Verdicts[k] = bpf.VerdictValue{
			Default: uint8(r.IntN(2)), Cookie: 1 + r.Uint32N(1000), Deny: uint8(r.IntN(2)),
		}
	}
	return world
}

var judgedProtocols = []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, unix.IPPROTO_GRE}

// verdict is what the program is to say: it looks through all that there is.
func verdict(w packettest.PolicyWorld, q packettest.Question) packettest.Answer {
	own, peer := q.Source, q.Destination
	if q.Direction == bpf.DirectionIngress {
		own, peer = peer, own
	}
	pod, ok := w.Pods[bpf.PodKey{Addr: bpf.AddressFrom(own)}]
	if !ok || pod.Flags&bpf.PodLocal == 0 {
		return packettest.Answer{Reason: bpf.ReasonUnknownSource}
	}
	ruleset := w.Subjects[bpf.SubjectKey{Subject: pod.Subject}].Ruleset
	if ruleset == bpf.EmptyRuleset {
		return packettest.Answer{}
	}
	var known bpf.IPCacheValue
	longest := -1
	for k, v := range w.IPCache {
		if p := k.Prefix(); p.Contains(peer) && p.Bits() > longest {
			known, longest = v, p.Bits()
		}
	}
	if known.Flags&bpf.IPCacheService != 0 && q.Direction == bpf.DirectionEgress && !q.Backend {
		return packettest.Answer{Postponed: true}
	}
	nothing := packettest.Answer{Reason: bpf.ReasonPolicyDenied}
	peerValue, found := w.Peers[bpf.PeerKey{Member: known.Member}]
	if longest < 0 || !found {
		return nothing
	}
	policy, found := w.Policy[bpf.PolicyKey{
		Ruleset: ruleset, Class: peerValue.Class, Direction: q.Direction,
	}]
	if !found {
		policy, found = w.Policy[bpf.PolicyKey{Ruleset: ruleset, Direction: q.Direction}]
	}
	if !found {
		return nothing
	}
	hasPort := q.Protocol != unix.IPPROTO_GRE && (q.Protocol != unix.IPPROTO_ICMP || own.Is4()) && (q.Protocol != unix.IPPROTO_ICMPV6 || own.Is6())
	var best bpf.VerdictValue
	most := -1
	for k, v := range w.Verdicts {
		protocol, port, bits := k.Traffic()
		switch {
		case k.Set != policy.Set, int(k.PrefixLen) <= most:
		case protocol == 0, protocol == q.Protocol && bits == 0,
			protocol == q.Protocol && hasPort && (q.Port^port)>>(16-bits) == 0:
			best, most = v, int(k.PrefixLen)
		}
	}
	switch {
	case most < 0:
		return nothing
	case best.Deny == 0:
		return packettest.Answer{Cookie: best.Cookie}
	case best.Default != 0:
		return packettest.Answer{Reason: bpf.ReasonPolicyDenied, Cookie: best.Cookie}
	}
	return packettest.Answer{Reason: bpf.ReasonPolicyRule, Cookie: best.Cookie}
}

// TestVerdictsOfRandomWorlds compares the programs' verdicts with those of a checker that
// looks through all entries.
func TestVerdictsOfRandomWorlds(t *testing.T) {
	newFixture(t, packettest.World4) // for the privileges
	j, err := packettest.NewJudge(nil)
	require.NoError(t, err)
	defer j.Close()
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[packettest.Answer]bool{}
	for range 60 {
		w := both[r.IntN(2)]
		world := judgedWorld(r, w)
		require.NoError(t, j.Load(world))
		var questions []packettest.Question
		peers := []netip.Addr{w.OtherPod, w.Server, w.Server2, w.Excluded, w.Uncovered, w.RemotePod, w.UnassignedPod, w.Service}
		for range 500 {
			q := packettest.Question{
				Source: w.Pod, Destination: peers[r.IntN(len(peers))], Direction: bpf.Direction(r.IntN(2)),
				Protocol: judgedProtocols[r.IntN(len(judgedProtocols))], SourcePort: 40000, Port: uint16(r.IntN(256)), Backend: r.IntN(2) == 0,
			}
			if q.Direction == bpf.DirectionIngress {
				q.Source, q.Destination = q.Destination, q.Source
			}
			questions = append(questions, q)
		}
		answers, err := j.Ask(questions)
		require.NoError(t, err)
		for i, q := range questions {
			want := verdict(world, q)
			require.Equal(t, want, answers[i], "%+v in %+v", q, world)
			seen[packettest.Answer{Reason: want.Reason, Postponed: want.Postponed}] = true
		}
	}
	require.Len(t, seen, 5, "all kinds of verdicts were met")
}

// BenchmarkJudge measures verdicts, with the work in the language of the tests.
func BenchmarkJudge(b *testing.B) {
	newFixture(b, packettest.World4)
	j, err := packettest.NewJudge(nil)
	require.NoError(b, err)
	defer j.Close()
	r := rand.New(rand.NewPCG(1, 2))
	world := judgedWorld(r, packettest.World4)
	world.Pods[bpf.PodKey{Addr: bpf.AddressFrom(packettest.World4.Pod)}] = bpf.PodValue{
		Subject: 1, Flags: bpf.PodLocal,
	}
	world.Subjects[bpf.SubjectKey{Subject: 1}] = bpf.SubjectValue{Ruleset: bpf.EmptyRuleset + 1}
	require.NoError(b, j.Load(world))
	questions := make([]packettest.Question, b.N)
	for i := range questions {
		questions[i] = packettest.Question{Source: packettest.World4.Pod, Destination: packettest.World4.Server, Protocol: unix.IPPROTO_TCP, Port: uint16(i)}
	}
	b.ResetTimer()
	_, err = j.Ask(questions)
	require.NoError(b, err)
}
