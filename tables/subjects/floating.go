// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

func movesEgressIP(old, new *tables.EgressIP) bool {
	return old.Fixed != new.Fixed || old.Node != new.Node || old.NodeAddr != new.NodeAddr ||
		old.Reason != new.Reason ||
		old.Owner != new.Owner || old.IfIndex != new.IfIndex
}

// markEgressIP marks the groups with an item of an egress address that moves.
func (r *rule) markEgressIP(in statedb.ReadTxn, ip *tables.EgressIP, mark func(key)) {
	for g := range r.Groups.All(in) {
		if slices.ContainsFunc(g.Gateways, func(c tables.GatewayChoice) bool {
			return c.Spec.EgressIP == ip.Addr
		}) {
			mark(key{kind: ofGroup, digest: g.Digest})
		}
	}
}

// owned returns the choice of the node that shall have the egress address of an item, if that
// moves.
func (c *round) owned(spec tables.GatewaySpec) (choice tables.GatewayChoice, moves bool) {
	if !spec.EgressIP.IsValid() {
		return choice, false
	}
	ip, _, moves := c.EgressIPs.Get(c.in, tables.EgressIPByAddr(spec.EgressIP))
	if !moves || ip.Fixed {
		return choice, false
	}
	return c.owner(spec, ip), true
}

// towardsFixed has traffic be sent towards the egress address of an item, where that is fixed and
// has blocks of ports: egress-blocks says where it is.
func (c *round) towardsFixed(choice *tables.GatewayChoice) {
	if choice.Node == "" || !choice.Spec.EgressIP.IsValid() {
		return
	}
	ip, _, found := c.EgressIPs.Get(c.in, tables.EgressIPByAddr(choice.Spec.EgressIP))
	switch {
	case !found || !ip.Fixed:
	case ip.Owner == choice.Node:
		choice.Addr = ip.Addr
	default:
		choice.Reason = ip.Reason
		if ip.Owner != "" {
			choice.Reason = "egress IP " + ip.Addr.String() + " is at " + ip.Owner +
				", which the oldest policy with it elects"
		}
		choice.Node, choice.Addr = "", netip.Addr{}
	}
}

// owner returns the choice of the node of an address, which the item has to select. Traffic is
// sent towards the address itself: egress-blocks says where it is.
func (c *round) owner(spec tables.GatewaySpec, ip *tables.EgressIP) tables.GatewayChoice {
	choice := tables.GatewayChoice{Spec: spec, Reason: ip.Reason}
	at, _ := ip.At()
	if at == "" {
		return choice
	}
	node, _, found := c.Nodes.Get(c.in, tables.NodeByName(at))
	if !found || !isCandidate(spec, node) {
		choice.Reason = "egress IP " + ip.Addr.String() + " is at " + at +
			", which the item does not select"
		return choice
	}
	choice.Node, choice.Addr = at, ip.Addr
	choice.Local = ip.IfIndex != 0 // whichever node has it, as others find
	return choice
}
