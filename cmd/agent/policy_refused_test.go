// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// The maps are too small for some rulesets, and for some classes. What a policy denies is denied
// at any moment. What is denied beside that is of a pod whose ruleset is too large, or of a peer
// whose class is coarse or refused.
func TestRandomRefusals(t *testing.T) {
	var refusals atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for seed := range randomSeeds(6) {
			t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
				t.Parallel()
				random := policytest.NewGenerator(6000 + seed)
				size := fmt.Sprintf("--map-size-policy=%d", 60+random.IntN(150))
				g := newPolicyCluster(t, random, append(policyFlags(random), size)...)
				g.policies.failClosed = true
				g.apply(random.World(14, 8)...)
				require.NoError(t, g.api.Sync())
				require.NoError(t, g.hive.Start(g.log, t.Context()))
				denied, err := g.failsClosed(t.Context())
				require.NoError(t, err, "the beginning, with %s", g.args)
				g.look()
				for i := range 10 {
					refusals.Add(denied)
					change := g.change()
					denied, err = g.failsClosed(t.Context())
					w := g.world(g.base.DB.ReadTxn())
					require.NoError(t, errors.Join(err, g.policies.rest(w)), "event %d: %s", i, change)
					g.look()
				}
			})
		}
	})
	require.NotZero(t, refusals.Load())
}

// failsClosed waits until nothing changes any more, and returns how many packets are denied that
// policies allow.
func (g *policyGenerator) failsClosed(ctx context.Context) (denied int64, err error) {
	if err := g.quietFor(ctx, surelySettled); err != nil {
		return 0, err
	}
	txn := g.base.DB.ReadTxn()
	w := g.world(txn)
	packets := w.Packets(rand.New(rand.NewPCG(g.Uint64(), 0)), comparedPackets)
	g.memory.Read(func(r bpf.Reader) {
		for _, p := range packets {
			allow, why := w.Verdict(p)
			verdict, _ := policyInKernel(r, p, w.HostAllowed)
			switch {
			case (verdict == allowed) == allow:
			case allow && (g.isTooLarge(txn, p.Subject) || g.isImprecise(txn, p.Peer)):
				denied++
			default:
				err = errors.Join(err, fmt.Errorf("%s: by the maps %s, by the policies %s, %s",
					p, verdict, verdictText(allow), why))
			}
		}
	})
	return denied, err
}

// isTooLarge reports whether a pod is isolated as its ruleset is too large.
func (g *policyGenerator) isTooLarge(txn statedb.ReadTxn, addr netip.Addr) bool {
	pod, _, found := g.desire.Pods.Get(txn, tables.PodByAddr(addr))
	if !found {
		return false
	}
	subject, _, found := g.desire.Subjects.Get(txn, tables.SubjectByNumber(pod.Subject))
	if !found {
		return false
	}
	ruleset, _, found := g.desire.Rulesets.Get(txn, tables.RulesetByNumber(subject.Ruleset))
	return found && ruleset.TooLarge != ""
}

// isImprecise reports whether an address is in a class that leaves selectors out.
func (g *policyGenerator) isImprecise(txn statedb.ReadTxn, addr netip.Addr) bool {
	prefix := netip.PrefixFrom(addr, addr.BitLen())
	row, _, found := g.desire.IPCache.Get(txn, tables.IPCacheByPrefix(prefix))
	if !found {
		return false
	}
	member, _, found := g.desire.Members.Get(txn, tables.MemberByNumber(row.Member))
	if !found {
		return false
	}
	class, _, found := g.desire.Classes.Get(txn, tables.ClassByNumber(member.Class))
	return found && class.Precision != tables.Exact
}
