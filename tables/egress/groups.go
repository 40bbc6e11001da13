// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"iter"
	"maps"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type groupParams struct {
	cell.In

	Groups         statedb.RWTable[*tables.EgressGroup]
	Policies       statedb.Table[*tables.EgressPolicy]
	Nodes          statedb.Table[*tables.Node]
	ClassEntries   statedb.Table[*tables.ClassEntry]
	EgressEntries  statedb.Table[*tables.EgressEntry]
	GatewayEntries statedb.Table[*tables.GatewayEntry]
	LocalNode      tables.LocalNode
}

// deriveGroups interns the lists of gateways and elects a node for each item.
func deriveGroups(p derive.Params, g groupParams) error {
	_, err := derive.Register(p, derive.Rule[bpf.Digest, *tables.EgressGroup]{
		Output: g.Groups,
		Inputs: []derive.Input[bpf.Digest]{
			derive.From(g.Policies, func(_ statedb.ReadTxn, p *tables.EgressPolicy, affect func(bpf.Digest)) {
				affect(tables.GroupDigest(p.Gateways))
			}),
			derive.FromIf(g.Nodes, electsOtherwise, func(txn statedb.ReadTxn, _ *tables.Node, affect func(bpf.Digest)) {
				for group := range g.Groups.All(txn) {
					affect(group.Digest)
				}
			}),
		},
		Existing: func(txn statedb.ReadTxn, digest bpf.Digest) iter.Seq2[*tables.EgressGroup, statedb.Revision] {
			return g.Groups.List(txn, tables.EgressGroupByDigest(digest))
		},
		Plan:  g.plan,
		Equal: (*tables.EgressGroup).Equal,
	})
	return err
}

func electsOtherwise(old, new *tables.Node) bool {
	return old.Ready != new.Ready || old.UnderlayIP() != new.UnderlayIP() || !maps.Equal(old.Labels, new.Labels)
}

// plan computes the groups, with numbers that no other group of the round gets.
func (g *groupParams) plan(txn statedb.ReadTxn, digests []bpf.Digest) ([]bpf.Digest, func(bpf.Digest) []*tables.EgressGroup) {
	taken := map[uint32]bool{}
	return digests, func(digest bpf.Digest) []*tables.EgressGroup {
		policies := statedb.Collect(g.Policies.List(txn, tables.EgressPoliciesByGroup(digest)))
		if len(policies) == 0 {
			return nil
		}
		row := g.elect(txn, digest, policies)
		if existing, _, exists := g.Groups.Get(txn, tables.EgressGroupByDigest(digest)); exists {
			row.Number = existing.Number
		} else {
			row.Number = g.number(txn, taken)
			taken[row.Number] = true
		}
		return []*tables.EgressGroup{row}
	}
}

// elect chooses a node for each item of the list: the first by name that is
// ready, chosen by the node selector, and has an address. In order of name, so
// that all nodes of the cluster elect alike.
func (g *groupParams) elect(txn statedb.ReadTxn, digest bpf.Digest, policies []*tables.EgressPolicy) *tables.EgressGroup {
	row := &tables.EgressGroup{Digest: digest}
	for _, p := range policies {
		row.Policies = append(row.Policies, p.Name)
	}
	for _, spec := range policies[0].Gateways {
		choice := tables.GatewayChoice{Spec: spec}
		selector, err := labels.Parse(spec.Nodes)
		switch {
		case spec.Error != "":
			choice.Reason = spec.Error
		case err != nil:
			choice.Reason = err.Error()
		default:
			row.Local = g.electNode(txn, selector, &choice) || row.Local
		}
		row.Gateways = append(row.Gateways, choice)
	}
	return row
}

// electNode fills in the elected node, and reports whether this node is a candidate.
func (g *groupParams) electNode(txn statedb.ReadTxn, selector labels.Selector, choice *tables.GatewayChoice) (local bool) {
	var refused []string
	for n := range g.Nodes.All(txn) { // in order of name
		if !selector.Matches(n.Labels) {
			continue
		}
		local = local || n.Name == g.LocalNode.Name
		switch addr := n.UnderlayIP(); {
		case choice.Node != "":
		case !n.Ready:
			refused = append(refused, n.Name+" is not ready")
		case !addr.IsValid():
			refused = append(refused, n.Name+" has no internal address")
		default:
			choice.Node, choice.Addr = n.Name, addr
		}
	}
	if choice.Node == "" {
		choice.Reason = "no node matches"
		if len(refused) > 0 {
			choice.Reason = strings.Join(refused, ", ")
		}
	}
	return local
}

// number returns a number that nothing names.
func (g *groupParams) number(txn statedb.ReadTxn, taken map[uint32]bool) uint32 {
	for number := uint32(1); ; number++ {
		_, _, used := g.Groups.Get(txn, tables.EgressGroupByNumber(number))
		if !used && !taken[number] && !g.known(txn, number) {
			return number
		}
	}
}

// known reports whether a map of the kernel names the group.
func (g *groupParams) known(txn statedb.ReadTxn, number uint32) bool {
	key := bpf.ClassKey{Role: bpf.RoleGatewayGroup, Number: number}
	if _, _, found := g.ClassEntries.Get(txn, tables.MapEntryByKey[bpf.ClassKey, bpf.ClassValue](key)); found {
		return true
	}
	if _, _, found := g.GatewayEntries.Get(txn, tables.GatewayEntriesByGroup(number)); found {
		return true
	}
	_, _, found := g.EgressEntries.Get(txn, tables.EgressEntriesByGroup(number))
	return found
}
