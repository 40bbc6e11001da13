// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"
	"maps"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// memberKey is what members are computed by: a label set, or a selector for
// the row that says that it is evaluated.
type memberKey struct {
	set      tables.LabelSetID
	selector tables.SelectorID
}

type memberParams struct {
	cell.In

	Endpoints  statedb.Table[*tables.Endpoint]
	Namespaces statedb.Table[*tables.Namespace]
	Nodes      statedb.Table[*tables.Node]
	Selectors  statedb.Table[*tables.Selector]
	LabelSets  statedb.Table[*tables.LabelSet]
	Members    statedb.RWTable[*tables.ClassMember]
	Classes    statedb.Table[*tables.Class]

	ClassEntries  statedb.Table[*tables.ClassEntry]
	SourceEntries statedb.Table[*tables.SourceEntry]
	EgressEntries statedb.Table[*tables.EgressEntry]
}

// deriveClassMembers keeps the partition of the label sets into egress classes.
func deriveClassMembers(p derive.Params, m memberParams) error {
	part := &partition{memberParams: m, role: bpf.RoleEgress}
	_, err := derive.Register(p, derive.Rule[memberKey, *tables.ClassMember]{
		Output: m.Members,
		Inputs: []derive.Input[memberKey]{
			derive.From(m.LabelSets, func(_ statedb.ReadTxn, s *tables.LabelSet, affect func(memberKey)) {
				affect(memberKey{set: s.ID})
			}),
			// Which policies use a selector is no matter here.
			derive.FromIf(m.Selectors, func(_, _ *tables.Selector) bool { return false }, part.affectedBySelector),
			derive.From(m.Namespaces, part.affectedByNamespace),
			derive.FromIf(m.Nodes,
				func(old, new *tables.Node) bool { return !maps.Equal(old.Labels, new.Labels) },
				part.affectedByNode),
			derive.FromIf(m.Endpoints,
				func(old, new *tables.Endpoint) bool { return old.Node != new.Node || old.LabelSet != new.LabelSet },
				part.affectedByEndpoint),
			derive.From(m.ClassEntries, part.affectedByEntry),
		},
		// Numbers are continued from what the maps hold.
		After: []statedb.TableMeta{m.SourceEntries, m.EgressEntries},
		Existing: func(txn statedb.ReadTxn, key memberKey) iter.Seq2[*tables.ClassMember, statedb.Revision] {
			if key.selector != 0 {
				return m.Members.List(txn, tables.ClassMemberByKey(tables.MemberKey{Role: part.role, Evaluated: key.selector}))
			}
			return m.Members.Prefix(txn, tables.ClassMembersOfLabelSet(part.role, key.set))
		},
		Plan:  part.plan,
		Equal: (*tables.ClassMember).Equal,
	})
	return err
}

// affectedBySelector are the label sets that the selector chooses, and its own row.
func (p *partition) affectedBySelector(txn statedb.ReadTxn, s *tables.Selector, affect func(memberKey)) {
	if s.Role != p.role {
		return
	}
	affect(memberKey{selector: s.ID})
	candidates := p.LabelSets.All(txn)
	if anchor := s.Anchor(); anchor != tables.AnyAnchor {
		candidates = p.LabelSets.List(txn, tables.LabelSetsByAnchor(anchor))
	}
	for set := range candidates {
		if s.MatchesLabels(set, p.namespace(txn, set.Namespace)) {
			affect(memberKey{set: set.ID})
		}
	}
}

func (p *partition) affectedByNamespace(txn statedb.ReadTxn, n *tables.Namespace, affect func(memberKey)) {
	for set := range p.LabelSets.List(txn, tables.LabelSetsByAnchor(tables.NamespaceAnchor(n.Name))) {
		affect(memberKey{set: set.ID})
	}
}

// affectedByNode are the label sets for which the node matters.
func (p *partition) affectedByNode(txn statedb.ReadTxn, n *tables.Node, affect func(memberKey)) {
	for m := range p.Members.List(txn, tables.ClassMembersByNode(n.Name)) {
		affect(memberKey{set: m.LabelSet})
	}
}

// affectedByEndpoint is the label set of the endpoint if the node matters for
// it: the endpoint may be the first or the last on its node.
func (p *partition) affectedByEndpoint(txn statedb.ReadTxn, e *tables.Endpoint, affect func(memberKey)) {
	for m := range p.Members.Prefix(txn, tables.ClassMembersOfLabelSet(p.role, e.LabelSet)) {
		if m.Node != "" {
			affect(memberKey{set: e.LabelSet})
		}
		return
	}
	// It has none: the label set is about to be derived, or was about to go.
	affect(memberKey{set: e.LabelSet})
}

// affectedByEntry are the label sets of a signature that more than one number
// stands for: once the kernel knows the numbers, the classes can be merged.
func (p *partition) affectedByEntry(txn statedb.ReadTxn, e *tables.ClassEntry, affect func(memberKey)) {
	if e.Key.Role == p.role && len(p.numbersOf(txn, e.Value.Digest)) > 1 {
		for m := range p.Members.List(txn, tables.ClassMembersByDigest(tables.RoleDigest{Role: p.role, Digest: e.Value.Digest})) {
			affect(memberKey{set: m.LabelSet})
		}
	}
}

func (p *partition) namespace(txn statedb.ReadTxn, name string) *tables.Namespace {
	n, _, _ := p.Namespaces.Get(txn, tables.NamespaceByName(name))
	return n
}

// signatures returns the members with a label set, without classes yet.
func (p *partition) signatures(txn statedb.ReadTxn, id tables.LabelSetID) []*tables.ClassMember {
	set, _, found := p.LabelSets.Get(txn, tables.LabelSetByID(id))
	if !found {
		return nil
	}
	chosen, nodeDependent := p.choosing(txn, set)
	if !nodeDependent {
		return []*tables.ClassMember{p.member(id, "", chosen, nil)}
	}
	var members []*tables.ClassMember
	seen := map[string]bool{}
	for e := range p.Endpoints.List(txn, tables.EndpointsByLabelSet(id)) {
		if !seen[e.Node] {
			seen[e.Node] = true
			node, _, _ := p.Nodes.Get(txn, tables.NodeByName(e.Node))
			members = append(members, p.member(id, e.Node, chosen, node))
		}
	}
	return members
}

// choosing returns the selectors that choose a label set, on some node at least.
func (p *partition) choosing(txn statedb.ReadTxn, set *tables.LabelSet) (chosen []*tables.Selector, nodeDependent bool) {
	namespace := p.namespace(txn, set.Namespace)
	consider := func(anchor string) {
		for s := range p.Selectors.List(txn, tables.SelectorsByAnchor(tables.RoleAnchor{Role: p.role, Anchor: anchor})) {
			if s.MatchesLabels(set, namespace) {
				chosen = append(chosen, s)
				nodeDependent = nodeDependent || s.NodeDependent()
			}
		}
	}
	consider(tables.AnyAnchor)
	consider(tables.NamespaceAnchor(set.Namespace))
	for k, v := range set.Labels {
		consider(tables.LabelAnchor(k, v))
	}
	return chosen, nodeDependent
}

func (p *partition) member(id tables.LabelSetID, nodeName string, chosen []*tables.Selector, node *tables.Node) *tables.ClassMember {
	m := &tables.ClassMember{Role: p.role, LabelSet: id, Node: nodeName}
	for _, s := range chosen {
		if s.MatchesNode(node) {
			m.Selectors = append(m.Selectors, s.ID)
		}
	}
	slices.Sort(m.Selectors)
	m.Digest = tables.SignatureDigest(m.Selectors)
	return m
}
