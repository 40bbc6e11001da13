// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// network builds the trace of a network policy.
func (t *Builder) network(txn statedb.ReadTxn, s *Trace, id tables.PolicyID) error {
	policy, _, found := t.t.NetworkPolicies.Get(txn, tables.NetworkPolicyByID(id))
	if !found {
		return absent(s.Policy)
	}
	add(s, t.t.NetworkPolicies, "what the agent makes of the object",
		slices.Values([]*tables.NetworkPolicy{policy}))
	add(s, t.t.NetworkStatus, "the status of the policy on this node",
		one(txn, t.t.NetworkStatus, tables.NetworkPolicyStatusByPolicy(id)))

	add(s, t.t.Compiled, "whether the rulesets of all pods that it selects have its rules",
		one(txn, t.t.Compiled, tables.CompiledPolicyByID(id)))

	rulesets := statedb.Collect(t.t.Rulesets.List(txn, tables.RulesetsByPolicy(id)))
	add(s, t.t.Rulesets, "rulesets with its rules, alone or with others", slices.Values(rulesets))
	selectors := selectorsOf(rulesets, id)
	add(s, t.t.Selectors, "selectors by which its rules select peers",
		each(txn, selectors, tables.SelectorByNumber, t.t.Selectors.List))
	add(s, t.t.Matches, "those by which all peers are told apart",
		each(txn, selectors, tables.SelectorMatchByNumber, t.t.Matches.List))

	of := numbers(rulesets)
	entries := slices.Collect(each(txn, of, tables.PolicyEntriesOfRuleset, t.t.Entries.Prefix))
	add(s, t.t.Entries, "what its rulesets say of classes of peers", slices.Values(entries))
	add(s, t.t.PolicyMirror, "these in the kernel", mirrors(txn, t.t.PolicyMirror, entries))
	var verdicts []*tables.Verdict
	for v := range each(txn, setsOf(entries), tables.VerdictsOfSet, t.t.Verdicts.Prefix) {
		if slices.Contains(tables.PoliciesOf(v.Rules), id) {
			verdicts = append(verdicts, v)
		}
	}
	add(s, t.t.Verdicts, "verdicts that it decides, alone or with others", slices.Values(verdicts))
	add(s, t.t.VerdictMirror, "its verdicts in the kernel",
		mirrors(txn, t.t.VerdictMirror, verdicts))

	subjects := slices.Collect(each(txn, of, tables.SubjectsByRuleset, t.t.Subjects.List))
	add(s, t.t.Subjects, "label sets of pods with its rulesets", slices.Values(subjects))
	add(s, t.t.SubjectMirror, "label sets that the kernel judges by its rulesets",
		each(txn, of, tables.MirrorsTo[bpf.SubjectKey, bpf.SubjectValue], t.t.SubjectMirror.List))
	add(s, t.t.Pods, "pods of this node that it is about",
		each(txn, numbers(subjects), tables.PodsBySubject, t.t.Pods.List))
	return nil
}

// setsOf returns the verdict sets of entries, each once and in order.
func setsOf(entries []*tables.PolicyEntry) (numbers []uint32) {
	for _, e := range entries {
		numbers = append(numbers, e.Set)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// selectorsOf returns the selectors that the rules of a policy name, each once and in order.
func selectorsOf(rulesets []*tables.Ruleset, id tables.PolicyID) (numbers []uint32) {
	for _, ruleset := range rulesets {
		for _, rule := range ruleset.Rules {
			if rule.Policy == id {
				numbers = append(numbers, rule.Peers...)
			}
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}
