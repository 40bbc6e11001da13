// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-net/sluice/bpf"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// checker looks at the outputs after each transaction.
type checker struct {
	*events
	ever   map[uint32]string // what each number stands for, of all times
	kernel []player
	pieces bool // a transaction computes few keys
}

func newChecker(t *testing.T, seed uint64) *checker {
	random := rand.New(rand.NewPCG(seed, 1))
	enforcement := tables.EnforcementDefault
	switch random.IntN(6) {
	case 0:
		enforcement = tables.EnforcementAlways
	case 1:
		enforcement = tables.EnforcementNever
	}
	match := CIDRMatch{Pods: random.IntN(2) == 0, Nodes: random.IntN(2) == 0}
	h := newHarness(t, enforcement, match)
	c := &checker{events: &events{h, random}, ever: map[uint32]string{}, kernel: h.reconcilers()}
	return c
}

// transact runs one transaction of the rule, and checks what it did.
func (c *checker) transact() (more bool) {
	in := &oracle{c.harness, c.db.ReadTxn()}
	more = c.step.Step()
	after := &oracle{c.harness, c.db.ReadTxn()}
	c.checkLives(in, after)
	c.checkReferences(after)
	c.checkForks(in, after)
	c.checkJoined(in, after)
	if !c.pieces { // a label of a namespace may have pods selected that wait
		c.checkCompiled(in, after)
		c.checkEgressCompiled(in, after)
	}
	return more
}

func (c *checker) checkLives(in, after *oracle) {
	was, is := in.objects(), after.objects()
	for n, object := range is {
		text, known := c.ever[n]
		if _, lives := was[n]; known {
			require.Equal(c, text, object.text, "number %d stands for something else", n)
			require.True(c, lives, "number %d is used again: %s", n, text)
		}
		c.ever[n] = object.text
		if strings.HasPrefix(object.text, "subject") && was[n].undesired {
			require.True(c, object.undesired, "subject %d is desired again", n)
		}
	}
	for n, object := range was {
		if _, lives := is[n]; lives || strings.HasPrefix(object.text, "selector") {
			continue
		}
		require.True(c, object.undesired, "%d is removed, and was not marked: %s", n, object.text)
		require.False(c, object.mirrored, "%d is removed, and referred to: %s", n, object.text)
	}
}

// checkReferences checks that what rows refer to is there.
func (c *checker) checkReferences(after *oracle) {
	for p := range c.Pods.All(after.txn) {
		_, _, found := c.Subjects.Get(after.txn, tables.SubjectByNumber(p.Subject))
		require.True(c, found || p.Local && p.Subject == 0, "%s: subject %d", p.Addr, p.Subject)
	}
	for s := range c.Subjects.All(after.txn) {
		if s.Ruleset == bpf.EmptyRuleset || !s.Local {
			continue
		}
		r, _, found := c.Rulesets.Get(after.txn, tables.RulesetByNumber(s.Ruleset))
		require.True(c, found && !r.Undesired, "subject %d: ruleset %d", s.Number, s.Ruleset)
	}
	for r := range c.Routes.All(after.txn) {
		_, _, found := c.Subjects.Get(after.txn, tables.SubjectByNumber(r.Subject))
		require.True(c, found, "route of subject %d", r.Subject)
		e, _, found := c.EgressRulesets.Get(
			after.txn, tables.EgressRulesetByNumber(r.EgressRuleset),
		)
		require.True(c, found && !e.Undesired, "subject %d: %d", r.Subject, r.EgressRuleset)
	}
	for r := range c.EgressRules.All(after.txn) {
		_, _, found := c.EgressRulesets.Get(after.txn, tables.EgressRulesetByNumber(r.Ruleset))
		require.True(c, found, "rule of egress ruleset %d", r.Ruleset)
	}
}

// checkForks checks that no address that leaves a subject sees it change.
func (c *checker) checkForks(in, after *oracle) {
	for old := range c.Subjects.All(in.txn) {
		new, _, found := c.Subjects.Get(after.txn, tables.SubjectByNumber(old.Number))
		if !found || old.Ruleset == new.Ruleset &&
			in.actualEgress(old.Number) == after.actualEgress(old.Number) {
			continue
		}
		stays := func(addr netip.Addr) {
			p, _, found := c.Pods.Get(after.txn, tables.PodByAddr(addr))
			require.True(c, found && p.Subject == old.Number,
				"%s leaves subject %d, which changes", addr, old.Number)
			set, node := in.known(addr)
			require.True(c, set != nil && set.ID == old.LabelSet && (node == here) == old.Local,
				"%s is to leave subject %d, which changes", addr, old.Number)
		}
		for p := range c.Pods.List(in.txn, tables.PodsBySubject(old.Number)) {
			stays(p.Addr)
		}
		for _, m := range all(in.txn, c.PodMirrors) {
			for _, v := range m.Values() {
				if v.Subject == old.Number {
					stays(m.Key.Addr.Addr())
				}
			}
		}
	}
}

// checkJoined checks that an address which comes to a subject finds there what policies say
// now.
func (c *checker) checkJoined(in, after *oracle) {
	for p := range c.Pods.All(after.txn) {
		old, _, had := c.Pods.Get(in.txn, tables.PodByAddr(p.Addr))
		if p.Subject == 0 || had && old.Subject == p.Subject {
			continue
		}
		set, node := in.known(p.Addr)
		require.NotNil(c, set, "%s", p.Addr)
		require.Equal(c, in.egressRuleset(set, node), after.actualEgress(p.Subject))
		if s, _, _ := c.Subjects.Get(after.txn, tables.SubjectByNumber(p.Subject)); p.Local {
			require.Equal(c, in.ruleset(set), after.actualRuleset(s.Ruleset))
		}
	}
}

// checkEgressCompiled checks that all egress policies are compiled only if all pods have their
// rules: of pods that are neither held nor about to leave, and of others that are to be served.
func (c *checker) checkEgressCompiled(in, after *oracle) {
	for p, revision := range c.EgressPolicies.All(in.txn) {
		row, _, found := c.Compiled.Get(
			after.txn, tables.CompiledPolicyByID(tables.EgressPolicyID(p.Name)),
		)
		if !found || row.Revision != revision {
			return
		}
	}
	for p := range c.Pods.All(after.txn) {
		s, _, found := c.Subjects.Get(after.txn, tables.SubjectByNumber(p.Subject))
		set, node := in.known(p.Addr)
		if !found || set == nil || s.LabelSet != set.ID || s.Undesired {
			continue
		}
		require.Equal(c, in.egressRuleset(set, node), after.actualEgress(p.Subject))
	}
}

// checkCompiled checks that a policy is compiled only if all pods that it selects have its
// rules: of pods that are neither held nor about to leave, as others are of other versions.
func (c *checker) checkCompiled(in, after *oracle) {
	for p, revision := range c.NetworkPolicies.All(in.txn) {
		row, _, found := c.Compiled.Get(after.txn, tables.CompiledPolicyByID(p.ID()))
		if !found || row.Revision != revision || c.Enforcement == tables.EnforcementNever {
			continue
		}
		for _, e := range all(in.txn, c.Locals) {
			pod, _, found := c.Pods.Get(after.txn, tables.PodByAddr(e.Addr))
			set, _ := in.known(e.Addr)
			if set == nil || !found || pod.Subject == 0 {
				continue
			}
			s, _, _ := c.Subjects.Get(after.txn, tables.SubjectByNumber(pod.Subject))
			if s.LabelSet != set.ID || s.Undesired {
				continue
			}
			for rule := range strings.SplitSeq(in.ruleset(set), "\n") {
				if strings.HasPrefix(rule, p.ID().String()+" ") {
					require.Contains(c, after.actualRuleset(s.Ruleset), rule, "%s is not compiled", p.ID())
				}
			}
		}
	}
}

// rest returns when everything is computed and in the kernel.
func (c *checker) rest() {
	for again := true; again; {
		again = false
		for c.transact() {
			again = true
		}
		for _, r := range c.kernel {
			again = r.settle(c.harness) || again
		}
	}
	now := &oracle{c.harness, c.db.ReadTxn()}
	now.check()
	for n, object := range now.objects() {
		require.False(c, object.undesired, "%d is not removed: %s", n, object.text)
	}
}

// check compares the outputs with what they must say.
func (o *oracle) check() {
	pods, actual := o.pods(), o.actualPods()
	for addr, said := range pods {
		require.Equal(o, said, actual[addr], "%s", addr)
		delete(actual, addr)
	}
	require.Empty(o, actual)
	var sets []*tables.LabelSet
	for _, e := range all(o.txn, o.Endpoints) {
		sets = append(sets, e.LabelSet)
	}
	prefixes := append(prefixesOf("10.0.0.1/32", "203.0.113.7/32", "fd00::1/128"), somePrefixes...)
	for _, s := range all(o.txn, o.Selectors) {
		want := o.resolution(s.Peers, sets, prefixes)
		require.Equal(o, want, o.actualResolution(s, sets, prefixes), s.Text)
		inUse := false
		for _, r := range all(o.txn, o.Rulesets) {
			for _, rule := range r.Rules {
				for _, peer := range rule.Peers {
					inUse = inUse || peer == s.Number
				}
			}
		}
		require.True(o, inUse, "selector %s is not in use", s.Text)
		o.checkMatches(s)
	}
	for _, g := range all(o.txn, o.Groups) {
		require.Equal(o, o.election(specsOf(g)), actualElection(g))
	}
	compiled := map[tables.PolicyID]statedb.Revision{}
	for _, p := range all(o.txn, o.Compiled) {
		compiled[p.Policy] = p.Revision
	}
	for p, revision := range o.NetworkPolicies.All(o.txn) {
		require.Equal(o, revision, compiled[p.ID()])
		delete(compiled, p.ID())
	}
	for p, revision := range o.EgressPolicies.All(o.txn) {
		id := tables.EgressPolicyID(p.Name)
		require.Equal(o, revision, compiled[id])
		delete(compiled, id)
	}
	require.Empty(o, compiled)
}

// checkMatches checks what of the cluster the prefixes of a selector mean.
func (o *oracle) checkMatches(s *tables.Selector) {
	pods, nodes := false, false
	switch p := s.Peers[0]; p.Kind {
	case tables.PeerCIDR, tables.PeerCIDRGroups:
		pods, nodes = o.CIDRMatch.Pods || p.MatchesPods, o.CIDRMatch.Nodes || p.MatchesPods
	case tables.PeerServices:
		pods, nodes = true, true
	case tables.PeerEntity:
		pods = p.Entity == tables.EntityKubeAPIServer
		nodes = pods
	}
	require.Equal(o, []bool{pods, nodes}, []bool{s.MatchesPods, s.MatchesNodes}, s.Text)
	for _, p := range s.Peers[1:] {
		require.Equal(o, tables.PeerCIDR, p.Kind)
	}
}

// Whatever happens, in whatever order the rule and the reconcilers learn of it, no
// transaction breaks a promise, and at rest all is as computed from scratch.
func TestRandom(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := newChecker(t, seed)
			busy := 1 + c.IntN(8) // how often the rule comes to work
			if c.pieces = c.one(2); c.pieces {
				limit := 1 + c.IntN(4)
				c.step.Limit(limit, limit)
			}
			for range 400 {
				switch n := c.IntN(20); {
				case n < 6:
					for range 1 + c.IntN(3) {
						c.event()
					}
				case n < 6+busy:
					c.transact()
				case n == 19 && c.one(3):
					c.rest()
				default:
					pick(c.events, c.kernel).act(c.events)
				}
			}
			c.rest()
			for _, reversed := range []bool{false, true} {
				for _, pieces := range []bool{false, true} {
					h := newHarness(t, c.Enforcement, c.CIDRMatch)
					h.copyFrom(c.harness, reversed, func() bool { return pieces })
					(&oracle{h, h.db.ReadTxn()}).check()
				}
			}
		})
	}
}
