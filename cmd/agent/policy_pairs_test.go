// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
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
	type lookup struct {
		verdict string
		cookie  uint32
	}
	lookups := make([]lookup, len(packets))
	g.memory.Read(func(r bpf.Reader) {
		kernel.Pods = maps.Collect(bpf.All[bpf.PodKey, bpf.PodValue](r, "sluice_pods"))
		kernel.IPCache = maps.Collect(bpf.All[bpf.IPCacheKey, bpf.IPCacheValue](r, "sluice_ipcache"))
		kernel.Subjects = maps.Collect(
			bpf.All[bpf.SubjectKey, bpf.SubjectValue](r, "sluice_subjects"))
		kernel.Peers = maps.Collect(bpf.All[bpf.PeerKey, bpf.PeerValue](r, "sluice_peers"))
		kernel.Policy = maps.Collect(bpf.All[bpf.PolicyKey, bpf.PolicyValue](r, "sluice_policy"))
		kernel.Verdicts = maps.Collect(
			bpf.All[bpf.VerdictKey, bpf.VerdictValue](r, "sluice_verdicts"))
		for i, p := range packets {
			verdict, decides := policyInKernel(r, p, w.HostAllowed)
			lookups[i] = lookup{verdict, decides.Cookie}
		}
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
		found := lookups[i]
		if (found.verdict == allowed) != allow || byKernel != allow ||
			found.cookie != answers[i].Cookie {
			violations = append(violations, fmt.Sprintf(
				"%s: %s, %s; by the entries %s (cookie %d), by the program %s (cookie %d)",
				p, verdictText(allow), why, found.verdict, found.cookie, answers[i].Reason, answers[i].Cookie))
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
