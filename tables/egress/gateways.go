// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type gatewayParams struct {
	cell.In

	Gateways  statedb.RWTable[*tables.EgressGateway]
	Groups    statedb.Table[*tables.EgressGroup]
	Devices   statedb.Table[*tables.Device]
	Addresses statedb.Table[*tables.NodeAddress]
	Routes    statedb.Table[*tables.Route]
	LocalNode tables.LocalNode
}

func deriveGateways(p derive.Params, g gatewayParams) error {
	return derive.Register(p, g.declare())
}

// declare is the rule that spreads the buckets of each group over its elected gateways, and
// finds out what traffic leaves this node with where it is one of them. A group has buckets
// for as long as it has a row: until no rule in the kernel leads to it.
func (g *gatewayParams) declare() derive.Rule[uint32] {
	return derive.Rule[uint32]{
		Outputs: []statedb.TableMeta{g.Gateways},
		Inputs: []derive.Input[uint32]{
			derive.FromIf(g.Groups, electsOthers, markGroup),
			derive.FromIf(g.Devices, hasOtherNames, g.markDevice),
			derive.From(g.Addresses, g.markAddress),
			derive.From(g.Routes, g.markRoute),
		},
		Compute: g.compute,
	}
}

func electsOthers(old, new *tables.EgressGroup) bool {
	return !slices.Equal(old.Gateways, new.Gateways)
}

func markGroup(_ statedb.ReadTxn, group *tables.EgressGroup, mark func(uint32)) {
	mark(group.Number)
}

func hasOtherNames(old, new *tables.Device) bool {
	return old.Name != new.Name || !slices.Equal(old.AltNames, new.AltNames)
}

func (g *gatewayParams) markDevice(in statedb.ReadTxn, d *tables.Device, mark func(uint32)) {
	g.leavingBy(in, d.Index, append([]string{d.Name}, d.AltNames...), netip.Addr{}, mark)
}

func (g *gatewayParams) markAddress(in statedb.ReadTxn, a *tables.NodeAddress, mark func(uint32)) {
	g.leavingBy(in, a.DeviceIndex, nil, a.Addr, mark)
}

func (g *gatewayParams) markRoute(in statedb.ReadTxn, r *tables.Route, mark func(uint32)) {
	if isDefault(r) {
		g.candidateHere(in, func(group uint32, _ tables.GatewaySpec) { mark(group) })
	}
}

// compute brings the buckets of groups up to date. Unchanged buckets keep their status.
func (g *gatewayParams) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, groups []uint32, _ func(uint32),
) error {
	for _, number := range groups {
		rows := g.rows(in, number)
		for _, row := range rows {
			former, _, found := g.Gateways.Get(out, tables.EgressGatewayByKey(row.GatewayKey))
			if found && row.Equal(former) {
				continue
			}
			if err := derive.Insert(out, g.Gateways, row); err != nil {
				return err
			}
		}
		if len(rows) > 0 {
			continue
		}
		gone := statedb.Collect(g.Gateways.Prefix(out, tables.EgressGatewaysOfGroup(number)))
		for _, row := range gone {
			if err := derive.Delete(out, g.Gateways, row); err != nil {
				return err
			}
		}
	}
	return nil
}

// candidateHere calls f with the groups and items of which this node is a candidate.
func (g *gatewayParams) candidateHere(
	txn statedb.ReadTxn, f func(group uint32, spec tables.GatewaySpec),
) {
	for group := range g.Groups.All(txn) {
		for _, c := range group.Gateways {
			if c.Local {
				f(group.Number, c.Spec)
			}
		}
	}
}

// leavingBy marks the groups whose traffic leaves this node by a device, or that name one of its
// names or addresses. Devices of pods come and go often.
func (g *gatewayParams) leavingBy(
	txn statedb.ReadTxn, index int, names []string, addr netip.Addr, mark func(uint32),
) {
	g.candidateHere(txn, func(group uint32, spec tables.GatewaySpec) {
		exit, err := g.exit(txn, spec)
		isNamed := slices.Contains(names, spec.Interface) || addr.IsValid() && spec.EgressIP == addr
		isByDefault := spec.Interface == "" && !spec.EgressIP.IsValid()
		leavesByIt := exit.device != nil && exit.device.Index == index
		if isNamed || leavesByIt || err != nil && isByDefault {
			mark(group)
		}
	})
}

func (g *gatewayParams) rows(txn statedb.ReadTxn, number uint32) []*tables.EgressGateway {
	group, _, found := g.Groups.Get(txn, tables.EgressGroupByNumber(number))
	if !found {
		return nil
	}
	candidates := make([]*tables.EgressGateway, len(group.Gateways))
	for i, c := range group.Gateways {
		candidates[i] = g.candidate(txn, c)
	}
	own := g.ownShare(txn, group.Gateways)
	rows := make([]*tables.EgressGateway, bpf.GatewayBuckets)
	for bucket, chosen := range spread(group.Gateways) {
		row := &tables.EgressGateway{Reason: noGateway(group.Gateways)}
		if chosen >= 0 {
			row = tables.Clone(candidates[chosen])
			if row.Node != g.LocalNode.Name {
				own(bucket, row)
			}
		}
		row.GatewayKey = bpf.GatewayKey{Group: number, Bucket: uint32(bucket)}
		row.Status = reconciler.StatusPending()
		rows[bucket] = row
	}
	return rows
}

// ownShare returns a function that fills in how this node sends traffic of another node's bucket,
// should it arrive here nevertheless: by one of the items of which this node is a candidate, which
// are spread over the buckets as if there were no others.
func (g *gatewayParams) ownShare(
	txn statedb.ReadTxn, choices []tables.GatewayChoice,
) func(bucket int, row *tables.EgressGateway) {
	var own []exit
	var items []tables.GatewayChoice
	for _, c := range choices {
		if !c.Local {
			continue
		}
		if e, err := g.exit(txn, c.Spec); err == nil {
			c.Node = g.LocalNode.Name
			own, items = append(own, e), append(items, c)
		}
	}
	share := spread(items)
	return func(bucket int, row *tables.EgressGateway) {
		if len(own) > 0 {
			own[share[bucket]].set(row)
		}
	}
}

// set fills in how traffic of a bucket leaves this node.
func (e exit) set(row *tables.EgressGateway) {
	row.EgressIPv4, row.EgressIPv6 = e.ipv4, e.ipv6
	row.IfIndex, row.Device = uint32(e.device.Index), e.device.Name
}

// candidate returns what the buckets of an elected gateway have in common.
func (g *gatewayParams) candidate(
	txn statedb.ReadTxn, c tables.GatewayChoice,
) *tables.EgressGateway {
	row := &tables.EgressGateway{Node: c.Node, Addr: c.Addr}
	if c.Node == "" || c.Node != g.LocalNode.Name {
		return row
	}
	if e, err := g.exit(txn, c.Spec); err != nil {
		row.Reason = err.Error()
	} else {
		e.set(row)
	}
	return row
}

func noGateway(choices []tables.GatewayChoice) string {
	reason := "no gateways"
	for i, c := range choices {
		if i == 0 {
			reason = c.Reason
		} else {
			reason += "; " + c.Reason
		}
	}
	return reason
}
