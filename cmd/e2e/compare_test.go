// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/e2e/cluster"
)

// converge waits until the maps are what the objects of the cluster ask for.
// Nothing may change the objects meanwhile.
func (a *agent) converge(c *cluster.Cluster, k *kernel) *world {
	a.t.Helper()
	inCilium := slices.Contains(a.flags, "--endpoint-source=cilium")
	var w *world
	a.eventually("the maps are what the objects ask for", func() (err error) {
		if w, err = load(a.t.Context(), c, inCilium); err != nil {
			return err
		}
		return w.compare(k)
	})
	return w
}

// compare says where the maps differ from what is asked for.
func (w *world) compare(k *kernel) error {
	v, err := k.view()
	if err != nil {
		return err
	}
	defer v.close()
	c, err := v.dump()
	if err != nil {
		return err
	}
	groups, err := groups(c.Gateways)
	if err != nil {
		return err
	}
	return errors.Join(
		different("sluice_pods", w.pods(), w.withoutSubjects(c.Pods)),
		different("sluice_ipcache", w.ipcache(), withoutMembers(c.IPCache)),
		w.compareNumbers(c, len(groups)),
		c.compareReferences(),
		w.compareDecisions(v, groups),
		different("sluice_covered", w.covered(), c.Covered),
		different("sluice_nodes", w.aliveNodes(), c.Nodes),
		w.compareExits(c),
		w.compareConfig(c),
		w.comparePrograms(k, c),
	)
}

// known stands for any subject of a pod of which is known what policies say.
const known = 1

// withoutSubjects has one number for all subjects, and no namespace of pods without an object:
// objects do not say which the agent has kept.
func (w *world) withoutSubjects(pods map[bpf.PodKey]bpf.PodValue) map[bpf.PodKey]bpf.PodValue {
	rest := map[bpf.PodKey]bpf.PodValue{}
	for key, value := range pods {
		value.Subject = min(value.Subject, known)
		if w.owner(key.Addr.Addr()) == nil {
			value.Namespace = 0
		}
		rest[key] = value
	}
	return rest
}

// withoutMembers leaves out what addresses are as peers of network policies, and
// the rows of all addresses that nothing else is known of.
func withoutMembers(
	ipcache map[bpf.IPCacheKey]bpf.IPCacheValue,
) map[bpf.IPCacheKey]bpf.IPCacheValue {
	rest := map[bpf.IPCacheKey]bpf.IPCacheValue{}
	for key, value := range ipcache {
		value.Member = 0
		if key.Prefix().Bits() > 0 || value != (bpf.IPCacheValue{}) {
			rest[key] = value
		}
	}
	return rest
}

// compareNumbers says whether there are too many egress rulesets, or too many or too few
// groups.
func (w *world) compareNumbers(c contents, groups int) (err error) {
	rulesets := map[uint32]bool{}
	for rule := range c.Egress {
		rulesets[rule.Ruleset] = true
	}
	if want := len(w.signatures()); len(rulesets) > want {
		err = fmt.Errorf("rules of %d egress rulesets, instead of %d", len(rulesets), want)
	}
	if want := len(w.groups()); groups != want {
		err = errors.Join(err, fmt.Errorf("%d gateway groups, instead of %d", groups, want))
	}
	return err
}

// compareReferences says which entries refer to what is not there, and what is there
// though nothing refers to it.
func (c contents) compareReferences() error {
	subjects, members := map[uint32]bool{0: true}, map[uint32]bool{}
	for _, pod := range c.Pods {
		subjects[pod.Subject] = true
	}
	for _, value := range c.IPCache {
		members[value.Member] = true
	}
	rulesets, egressRulesets := map[uint32]bool{0: true, bpf.EmptyRuleset: true}, map[uint32]bool{}
	subjectsThere, routesThere := map[uint32]bool{0: true}, map[uint32]bool{}
	for key, value := range c.Subjects {
		subjectsThere[key.Subject], rulesets[value.Ruleset] = true, true
	}
	for key, value := range c.Routes {
		routesThere[key.Subject], egressRulesets[value.EgressRuleset] = true, true
	}
	classes, peersThere := map[uint32]bool{bpf.AnyClass: true}, map[uint32]bool{}
	for key, value := range c.Peers {
		peersThere[key.Member], classes[value.Class] = true, true
	}
	sets, rulesetsThere := map[uint32]bool{}, map[uint32]bool{0: true, bpf.EmptyRuleset: true}
	classesOfRules, setsThere := map[uint32]bool{}, map[uint32]bool{}
	for key, value := range c.Policy {
		rulesetsThere[key.Ruleset], classesOfRules[key.Class], sets[value.Set] = true, true, true
	}
	for key := range c.Verdicts {
		setsThere[key.Set] = true
	}
	egressThere := map[uint32]bool{}
	for key := range c.Egress {
		egressThere[key.Ruleset] = true
	}
	return errors.Join(
		different("subjects of pods", subjects, subjectsThere),
		different("members of addresses", members, peersThere),
		different("rulesets of subjects", rulesets, rulesetsThere),
		different("verdict sets of rulesets", sets, setsThere),
		different("egress rulesets of routes", egressRulesets, egressThere),
		within("subjects of routes", routesThere, subjects),
		within("classes of rulesets", classesOfRules, classes),
	)
}

// within lists the numbers that are not among others.
func within(what string, numbers, others map[uint32]bool) (err error) {
	for number := range numbers {
		if !others[number] {
			err = errors.Join(err, fmt.Errorf("%s: nothing refers to %d", what, number))
		}
	}
	return err
}

// compareDecisions looks at packets from every address that an endpoint has to
// the ends of every prefix that a policy names, and some others.
func (w *world) compareDecisions(v *view, groups map[uint32]ways) (err error) {
	destinations := w.destinations()
	for src := range w.addresses() {
		for _, dst := range destinations {
			if src.BitLen() != dst.BitLen() {
				continue
			}
			want := w.decide(src, dst)
			if got, lookupErr := v.decision(src, dst, groups); lookupErr != nil || got != want {
				err = errors.Join(err, lookupErr, fmt.Errorf("%s to %s: %v, instead of %v", src, dst, got, want))
			}
		}
	}
	return err
}

func (w *world) destinations() []netip.Addr {
	destinations := addrs("198.18.0.1", "2001:db8:ffff::1", localPod.String())
	for _, p := range w.policies {
		for _, prefix := range slices.Concat(p.to, p.not) {
			destinations = append(destinations, prefix.Addr())
			if next := prefix.Addr().Next(); prefix.Contains(next) {
				destinations = append(destinations, next)
			}
		}
	}
	slices.SortFunc(destinations, netip.Addr.Compare)
	return slices.Compact(destinations)
}

// different lists the entries that differ.
func different[K comparable, V comparable](what string, want, got map[K]V) (err error) {
	keys := map[K]bool{}
	for key := range want {
		keys[key] = true
	}
	for key := range got {
		keys[key] = true
	}
	var lines []string
	for key := range maps.Keys(keys) {
		w, wanted := want[key]
		g, found := got[key]
		switch {
		case !found:
			lines = append(lines, fmt.Sprintf("%s: %v is missing, should be %v", what, key, w))
		case !wanted:
			lines = append(lines, fmt.Sprintf("%s: %v is %v, should be absent", what, key, g))
		case w != g:
			lines = append(lines, fmt.Sprintf("%s: %v is %v, should be %v", what, key, g, w))
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		err = errors.Join(err, errors.New(line))
	}
	return err
}

// contents returns what the maps hold.
func (a *agent) contents(k *kernel) (c contents) {
	a.t.Helper()
	a.eventually("the maps can be read", func() (err error) {
		c, err = k.dump()
		return err
	})
	return c
}

// requireUnchanged fails unless the maps hold just what they held before.
func (a *agent) requireUnchanged(k *kernel, before contents) {
	a.t.Helper()
	after, err := k.dump()
	require.NoError(a.t, err)
	require.NoError(a.t, errors.Join(
		different("sluice_pods", before.Pods, after.Pods),
		different("sluice_ipcache", before.IPCache, after.IPCache),
		different("sluice_subjects", before.Subjects, after.Subjects),
		different("sluice_routes", before.Routes, after.Routes),
		different("sluice_peers", before.Peers, after.Peers),
		different("sluice_policy", before.Policy, after.Policy),
		different("sluice_verdicts", before.Verdicts, after.Verdicts),
		different("sluice_egress", before.Egress, after.Egress),
		different("sluice_gateways", before.Gateways, after.Gateways),
		different("sluice_exits", before.Exits, after.Exits),
		different("sluice_covered", before.Covered, after.Covered),
		different("sluice_nodes", before.Nodes, after.Nodes),
		different("sluice_config", before.Config, after.Config),
	))
}
