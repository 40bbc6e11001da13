// SPDX-License-Identifier: Apache-2.0

package story

import (
	"cmp"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// network tells the story of a network policy.
func (t *Teller) network(txn statedb.ReadTxn, s *Story, id tables.PolicyID) error {
	policy, _, found := t.t.NetworkPolicies.Get(txn, tables.NetworkPolicyByID(id))
	if !found {
		return absent(s.Policy)
	}
	add(s, t.t.NetworkPolicies, "what the agent makes of the object", slices.Values([]*tables.NetworkPolicy{policy}))
	add(s, t.t.NetworkStatus, "how the policy fares on this node", one(txn, t.t.NetworkStatus, tables.NetworkPolicyStatusByPolicy(id)))

	var selectors []statedb.Query[*tables.Selector]
	for _, selector := range policy.SelectorIDs() {
		selectors = append(selectors, tables.SelectorByID(selector))
	}
	add(s, t.t.Selectors, "its selectors, of subjects and of peers", each(txn, selectors, t.t.Selectors.List))
	add(s, t.t.Rules, "what is in force of it", one(txn, t.t.Rules, tables.EnforcedPolicyByID(id)))

	entries := statedb.Collect(t.t.Entries.List(txn, tables.PolicyEntriesByPolicy(id)))
	classes := classesOf(entries)
	var rows []statedb.Query[*tables.Class]
	var pods []statedb.Query[*tables.LocalEndpoint]
	for _, class := range classes {
		rows = append(rows, tables.ClassByKey(class))
		if class.Role == bpf.RoleSubject {
			pods = append(pods, tables.LocalEndpointsBySubjectClass(class.Number))
		}
	}
	add(s, t.t.Classes, "classes of subjects and peers that its entries name", each(txn, rows, t.t.Classes.List))
	add(s, t.t.Entries, "verdicts that it decides, alone or with others", slices.Values(entries))
	add(s, t.t.Locals, "pods of this node that it is about", each(txn, pods, t.t.Locals.List))

	var inKernel []statedb.Query[*tables.PolicyMapEntry]
	for _, entry := range entries {
		inKernel = append(inKernel, tables.MapEntryByKey[bpf.PolicyKey, bpf.PolicyValue](entry.MapKey()))
	}
	add(s, t.t.PolicyEntries, "its verdicts in the kernel", each(txn, inKernel, t.t.PolicyEntries.List))
	return nil
}

// classesOf returns the classes that some entries name, each once: the subjects first.
func classesOf(entries []*tables.PolicyEntry) []bpf.ClassKey {
	var classes []bpf.ClassKey
	for _, entry := range entries {
		classes = append(classes, bpf.ClassKey{Role: bpf.RoleSubject, Number: entry.Key.Subject})
		if entry.Key.Peer != bpf.AnyPeerClass {
			classes = append(classes, bpf.ClassKey{Role: bpf.RolePeer, Number: entry.Key.Peer})
		}
	}
	slices.SortFunc(classes, func(a, b bpf.ClassKey) int {
		return cmp.Or(-cmp.Compare(a.Role, b.Role), cmp.Compare(a.Number, b.Number))
	})
	return slices.Compact(classes)
}
