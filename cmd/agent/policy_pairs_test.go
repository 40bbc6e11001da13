// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
	"github.com/sluice-net/sluice/tables/policy"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// How many worlds there are, in a row in some clusters, and how many packets are
// judged in each: a million pairs of policies and packets in all.
const (
	pairClusters = 8
	pairWorlds   = 25
	pairPackets  = 5200
)

// In random worlds, the entries that the whole agent makes of the policies say of
// random packets what the policies say from first principles: by the look-ups in
// Go, and by the program that runs in the kernel.
func TestMillionPairs(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") != "" {
			t.Fatal("programs can be run by root only")
		}
		t.Skip("programs can be run by root only")
	}
	var pairs, clusters atomic.Int64
	t.Run("clusters", func(t *testing.T) {
		for i := range uint64(pairClusters) {
			t.Run(fmt.Sprint("seed ", i), func(t *testing.T) {
				t.Parallel()
				clusters.Add(1)
				judge, err := packettest.NewJudge(nil)
				require.NoError(t, err)
				defer judge.Close()
				g := newPolicyGenerator(t, 3000+i)
				g.policies.stop()
				for world := range pairWorlds {
					for range 6 {
						g.change()
					}
					require.NoError(t, g.quiet(t.Context()))
					w := g.world(g.base.DB.ReadTxn())
					packets := w.Packets(rand.New(rand.NewPCG(i, uint64(world))), pairPackets)
					pairs.Add(int64(len(packets)))
					err := g.judge(judge, w, packets)
					if err != nil { // a busy machine may be slow
						require.NoError(t, g.quietFor(t.Context(), surelySettled))
						err = g.judge(judge, w, packets)
					}
					require.NoError(t, err, "world %d with %s", world, g.args)
				}
			})
		}
	})
	if clusters.Load() == pairClusters && !t.Failed() { // not of some of them
		require.GreaterOrEqual(t, pairs.Load(), int64(1_000_000), "pairs")
	}
}

// judge has the packets judged in the three ways.
func (g *policyGenerator) judge(judge *packettest.Judge, w *policytest.World, packets []policytest.Packet) error {
	var kernel packettest.PolicyWorld
	g.memory.Read(func(r bpf.Reader) {
		kernel.Pods = maps.Collect(bpf.All[bpf.PodKey, bpf.PodValue](r, "sluice_pods"))
		kernel.IPCache = maps.Collect(bpf.All[bpf.IPCacheKey, bpf.IPCacheValue](r, "sluice_ipcache"))
		kernel.Policy = maps.Collect(bpf.All[bpf.PolicyKey, bpf.PolicyValue](r, "sluice_policy"))
	})
	if err := judge.Load(kernel); err != nil {
		return err
	}
	questions := make([]packettest.Question, len(packets))
	for i, p := range packets {
		questions[i] = question(w, p)
	}
	answers, err := judge.Ask(questions)
	if err != nil {
		return err
	}
	var violations []string
	for i, p := range packets {
		allow, why := w.Verdict(p)
		byKernel := answers[i].Reason == bpf.ReasonPassed
		lookup, cookie := lookUp(kernel, w, p)
		if lookup != allow || byKernel != allow || cookie != answers[i].Cookie {
			violations = append(violations, fmt.Sprintf("%s: %s, %s; by the entries %s (cookie %d), by the program %s (cookie %d)",
				p, verdictText(allow), why, verdictText(lookup), cookie, answers[i].Reason, answers[i].Cookie))
		}
	}
	return report(violations)
}

// question is a packet for the program.
func question(w *policytest.World, p policytest.Packet) packettest.Question {
	q := packettest.Question{Protocol: p.Protocol, SourcePort: 40000, Port: p.Port, Direction: p.Direction}
	if p.Direction == bpf.DirectionEgress {
		q.Source, q.Destination, q.Backend = p.Subject, p.Peer, true
		return q
	}
	q.Source, q.Destination, q.FromHost = p.Peer, p.Subject, w.HostAllowed && w.IsHost(p.Peer)
	return q
}

// lookUp does in Go what the program does: the verdict, and the cookie of the
// rules that decide.
func lookUp(kernel packettest.PolicyWorld, w *policytest.World, p policytest.Packet) (allow bool, cookie uint32) {
	pod, local := kernel.Pods[bpf.PodKey{Addr: bpf.AddressFrom(p.Subject)}]
	var peer bpf.IPCacheValue
	for bits := p.Peer.BitLen(); bits >= 0; bits-- {
		prefix := netip.PrefixFrom(p.Peer, bits).Masked()
		if v, found := kernel.IPCache[bpf.IPCacheKeyFrom(prefix)]; found {
			peer = v
			break
		}
	}
	fromHost := w.HostAllowed && p.Direction == bpf.DirectionIngress && peer.Flags&bpf.IPCacheHost != 0
	switch {
	case !local || pod.Flags&bpf.PodPolicyUnknown != 0 && !fromHost:
		return false, 0
	case fromHost, pod.SubjectClass == bpf.NoSubjectClass:
		return true, 0
	}
	v, _, found := policy.Lookup(func(k bpf.PolicyKey) (bpf.PolicyValue, bool) {
		v, found := kernel.Policy[k]
		return v, found
	}, pod.SubjectClass, peer.PeerClass, p.Direction, p.Protocol, p.Port)
	return found && v.Deny == 0, v.Cookie
}
