// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// egressScope is what is particular to egress classes: label sets of all nodes,
// with the labels of the node where a selector looks at them.
type egressScope struct{ *members }

func (e *egressScope) signatures(r *round, key memberKey) []*tables.ClassMember {
	if r.chooser.noSelectors(r.txn) && len(r.before(key)) == 0 {
		return nil
	}
	set := tables.LabelSetByID(r.txn, e.Places.Endpoints, key.set)
	if set == nil {
		return nil
	}
	chosen := r.chooser.choosing(r.txn, set)
	if r.chooser.unknown {
		// In no class, also if some policy chooses it for sure: when the labels are known, the
		// address would be let go by the rules of that class before it has come to its own.
		return []*tables.ClassMember{{Role: bpf.RoleEgress, LabelSet: set.ID, NamespaceUnknown: true}}
	}
	if len(chosen) == 0 && len(r.before(key)) == 0 {
		return nil // as most are
	}
	if !slices.ContainsFunc(chosen, (*tables.Selector).NodeDependent) {
		return []*tables.ClassMember{e.member(r, set.ID, "", chosen, nil)}
	}
	var wanted []*tables.ClassMember
	seen := map[string]bool{}
	for ep := range e.Places.Endpoints.List(r.txn, tables.EndpointsByLabelSet(set.ID)) {
		if !seen[ep.Node] {
			seen[ep.Node] = true
			node, _, _ := e.Places.Nodes.Get(r.txn, tables.NodeByName(ep.Node))
			wanted = append(wanted, e.member(r, set.ID, ep.Node, chosen, node))
		}
	}
	return wanted
}

func (*egressScope) member(r *round, id tables.LabelSetID, nodeName string, chosen []*tables.Selector, node *tables.Node) *tables.ClassMember {
	m := &tables.ClassMember{Role: bpf.RoleEgress, LabelSet: id, Node: nodeName}
	var selectors []tables.SelectorID
	for _, s := range chosen {
		if s.MatchesNode(node) {
			selectors = append(selectors, s.ID)
		}
	}
	r.signer.sign(m, selectors, nil)
	return m
}

// size counts the endpoints of a member.
func (e *egressScope) size(txn statedb.ReadTxn, m *tables.ClassMember) (n int) {
	for ep := range e.Places.Endpoints.List(txn, tables.EndpointsByLabelSet(m.LabelSet)) {
		if m.Node == "" || m.Node == ep.Node {
			n++
		}
	}
	return n
}

func (*egressScope) evaluated(statedb.ReadTxn, *tables.Selector) bool { return true }

func (*egressScope) joinable(r *round, number uint32, digest bpf.Digest) bool {
	return r.waitsForNobody(number, digest)
}

func (*egressScope) reusable(*round, uint32) bool { return true }

func (*egressScope) mayKeep(*round, uint32, *tables.ClassMember) bool { return true }

func (e *egressScope) free(txn statedb.ReadTxn, number uint32) bool {
	if _, _, used := e.SourceEntries.Get(txn, tables.SourceEntriesByClass(number)); used {
		return false
	}
	_, _, used := e.EgressEntries.Get(txn, tables.EgressEntriesByClass(number))
	return !used
}

// finish notes the classes that members leave, and drops those that need no row.
func (e *egressScope) finish(r *round) {
	placement := tables.Placement{Endpoints: e.Places.Endpoints, Members: e.Output, SourceEntries: e.SourceEntries}
	for i := range r.order {
		of := &r.order[i]
		for _, m := range of.wanted {
			old, _, found := e.Output.Get(r.txn, tables.ClassMemberByKey(m.Key()))
			switch {
			case !found:
			case old.Class == m.Class:
				m.Former = old.Former
			default:
				for _, number := range append(slices.Clone(old.Former), old.Class) {
					if number != 0 && number != m.Class && placement.Has(r.txn, m, number) && !slices.Contains(m.Former, number) {
						m.Former = append(m.Former, number)
					}
				}
			}
		}
		of.wanted = slices.DeleteFunc(of.wanted, func(m *tables.ClassMember) bool {
			return m.Class == 0 && m.Node == "" && len(m.Former) == 0 && !m.NamespaceUnknown
		})
	}
}
