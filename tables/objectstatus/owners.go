// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// owners finds the nodes that have addresses of pools which move, as they report it: nodes vote on
// them, and the operator does not know the votes.
type owners struct {
	*electionParams
	in    statedb.ReadTxn
	pools []*tables.EgressIPPool // in order
}

func (e *electionParams) owners(in statedb.ReadTxn) *owners {
	o := &owners{electionParams: e, in: in, pools: statedb.Collect(e.Pools.All(in))}
	slices.SortFunc(o.pools, tables.InOrder[*tables.EgressIPPool])
	return o
}

// of returns the node of an item, and reports whether the address of the item moves. An internal
// address of a Node does not, whatever pools have.
func (o *owners) of(spec tables.GatewaySpec) (choice tables.GatewayChoice, moves bool) {
	if spec.Error != "" || !spec.EgressIP.IsValid() {
		return choice, false
	}
	at := slices.IndexFunc(o.pools,
		func(p *tables.EgressIPPool) bool { return p.Contains(spec.EgressIP) })
	if at < 0 || o.pools[at].Fixed {
		return choice, false
	}
	for n := range o.Nodes.List(o.in, tables.NodesByAddr(spec.EgressIP)) {
		if slices.Contains(n.InternalIPs, spec.EgressIP) {
			return choice, false
		}
	}
	return o.owner(spec, o.pools[at]), true
}

// owner returns the node that has the address of an item: of two that report it, as when one of
// them has lost its power, the one whose report is newer.
func (o *owners) owner(spec tables.GatewaySpec, pool *tables.EgressIPPool) tables.GatewayChoice {
	if pool.Error != "" {
		return tables.GatewayChoice{Reason: "pool " + pool.Name + ": " + pool.Error}
	}
	ofPool, err := labels.Parse(pool.Nodes)
	if err != nil {
		return tables.GatewayChoice{Reason: "pool " + pool.Name + ": " + err.Error()}
	}
	ofItem, err := labels.Parse(spec.Nodes)
	if err != nil {
		return tables.GatewayChoice{Reason: err.Error()}
	}
	choice, elsewhere := tables.GatewayChoice{}, ""
	var newest statedb.Revision
	for report, revision := range o.Reports.List(o.in, tables.NodeReportsByEgressIP(spec.EgressIP)) {
		n, _, found := o.Nodes.Get(o.in, tables.NodeByName(report.Node))
		switch {
		case !found || !mayHave(n, ofPool):
		case !ofItem.Matches(n.Labels):
			elsewhere = n.Name
		case revision > newest:
			choice.Node, choice.Addr, newest = n.Name, spec.EgressIP, revision
		}
	}
	switch {
	case choice.Node != "":
	case elsewhere != "":
		choice.Reason = fmt.Sprintf("egress IP %s is at %s, which the item does not select",
			spec.EgressIP, elsewhere)
	case !o.isSelected(ofPool, ofItem):
		choice.Reason = fmt.Sprintf(
			"no node that is ready is selected by both EgressIPPool %s and the policy", pool.Name)
	default:
		choice.Reason = fmt.Sprintf("no node reports that it has egress IP %s", spec.EgressIP)
		choice.Awaited = true
	}
	return choice
}

// isSelected reports whether some node may have the addresses of a pool and is selected by an item.
func (o *owners) isSelected(ofPool, ofItem labels.Selector) bool {
	for n := range o.Nodes.All(o.in) {
		if mayHave(n, ofPool) && ofItem.Matches(n.Labels) {
			return true
		}
	}
	return false
}

func mayHave(n *tables.Node, ofPool labels.Selector) bool {
	return n.Ready && n.UnderlayIP().IsValid() && ofPool.Matches(n.Labels)
}

// markUsers marks the lists of gateways with an address for which a function reports true.
func (e *electionParams) markUsers(
	now statedb.ReadTxn, is func(netip.Addr) bool, mark func(bpf.Digest),
) {
	for p := range e.Policies.List(now, tables.EgressPoliciesWithEgressIP(true)) {
		if slices.ContainsFunc(p.EgressIPs(), is) {
			mark(tables.GroupDigest(p.Gateways))
		}
	}
}
