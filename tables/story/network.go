// SPDX-License-Identifier: Apache-2.0

package story

import (
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// network builds the story of a network policy.
func (t *Builder) network(txn statedb.ReadTxn, s *Story, id tables.PolicyID) error {
	policy, _, found := t.t.NetworkPolicies.Get(txn, tables.NetworkPolicyByID(id))
	if !found {
		return absent(s.Policy)
	}
	add(s, t.t.NetworkPolicies, "the object as the agent has read it",
		slices.Values([]*tables.NetworkPolicy{policy}))
	add(s, t.t.NetworkStatus, "status of the policy on this node",
		one(txn, t.t.NetworkStatus, tables.NetworkPolicyStatusByPolicy(id)))

	add(s, t.t.Compiled, "whether the rulesets of all pods that it selects have its rules",
		one(txn, t.t.Compiled, tables.CompiledPolicyByID(id)))

	rulesets := statedb.Collect(t.t.Rulesets.List(txn, tables.RulesetsByPolicy(id)))
	add(s, t.t.Rulesets, "rulesets with its rules, alone or with others", slices.Values(rulesets))
	var selectors []statedb.Query[*tables.Selector]
	var matches []statedb.Query[*tables.SelectorMatch]
	for _, number := range selectorsOf(rulesets, id) {
		selectors = append(selectors, tables.SelectorByNumber(number))
		matches = append(matches, tables.SelectorMatchByNumber(number))
	}
	add(s, t.t.Selectors, "selectors by which its rules select peers",
		each(txn, selectors, t.t.Selectors.List))
	add(s, t.t.Matches, "those that have been evaluated for all peers",
		each(txn, matches, t.t.Matches.List))

	var ofRuleset []statedb.Query[*tables.PolicyEntry]
	var subjectsOf []statedb.Query[*tables.Subject]
	var switched []statedb.Query[*tables.SubjectMirror]
	for _, r := range rulesets {
		ofRuleset = append(ofRuleset, tables.PolicyEntriesOfRuleset(r.Number))
		subjectsOf = append(subjectsOf, tables.SubjectsByRuleset(r.Number))
		switched = append(switched, tables.MirrorsTo[bpf.SubjectKey, bpf.SubjectValue](r.Number))
	}
	entries := slices.Collect(each(txn, ofRuleset, t.t.Entries.Prefix))
	add(s, t.t.Entries, "entries of its rulesets for classes of peers", slices.Values(entries))
	add(s, t.t.PolicyMirror, "these in the kernel", mirrors(txn, t.t.PolicyMirror, entries))
	verdicts := statedb.Collect(t.t.Verdicts.List(txn, tables.VerdictsByPolicy(id)))
	add(s, t.t.Verdicts, "verdicts that it decides, alone or with others", slices.Values(verdicts))
	add(s, t.t.VerdictMirror, "its verdicts in the kernel",
		mirrors(txn, t.t.VerdictMirror, verdicts))

	subjects := slices.Collect(each(txn, subjectsOf, t.t.Subjects.List))
	add(s, t.t.Subjects, "label sets of pods with its rulesets", slices.Values(subjects))
	add(s, t.t.SubjectMirror, "label sets that the kernel judges by its rulesets",
		each(txn, switched, t.t.SubjectMirror.List))
	var pods []statedb.Query[*tables.Pod]
	for _, subject := range subjects {
		pods = append(pods, tables.PodsBySubject(subject.Number))
	}
	add(s, t.t.Pods, "pods of this node that it selects", each(txn, pods, t.t.Pods.List))
	return nil
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
