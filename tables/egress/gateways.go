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
		g.electedHere(in, func(group uint32, _ tables.GatewaySpec) { mark(group) })
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

// electedHere calls f with the groups and items for which this node is elected.
func (g *gatewayParams) electedHere(
	txn statedb.ReadTxn, f func(group uint32, spec tables.GatewaySpec),
) {
	for group := range g.Groups.All(txn) {
		for _, c := range group.Gateways {
			if c.Node == g.LocalNode.Name {
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
	g.electedHere(txn, func(group uint32, spec tables.GatewaySpec) {
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
	own := ownShare(group.Gateways, candidates)
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
// should it arrive here nevertheless: by one of this node's own items, which are spread over the
// buckets as if there were no others.
func ownShare(
	choices []tables.GatewayChoice, candidates []*tables.EgressGateway,
) func(bucket int, row *tables.EgressGateway) {
	var own []*tables.EgressGateway
	var items []tables.GatewayChoice
	for i, c := range candidates {
		if c.Device != "" {
			own, items = append(own, c), append(items, choices[i])
		}
	}
	share := spread(items)
	return func(bucket int, row *tables.EgressGateway) {
		if len(own) > 0 {
			c := own[share[bucket]]
			row.EgressIPv4, row.EgressIPv6, row.IfIndex, row.Device = c.EgressIPv4, c.EgressIPv6, c.IfIndex, c.Device
		}
	}
}

// candidate returns what the buckets of an elected gateway have in common.
func (g *gatewayParams) candidate(
	txn statedb.ReadTxn, c tables.GatewayChoice,
) *tables.EgressGateway {
	row := &tables.EgressGateway{Node: c.Node, Addr: c.Addr}
	if c.Node == "" || c.Node != g.LocalNode.Name {
		return row
	}
	exit, err := g.exit(txn, c.Spec)
	if err != nil {
		row.Reason = err.Error()
		return row
	}
	row.EgressIPv4, row.EgressIPv6 = exit.ipv4, exit.ipv6
	row.IfIndex, row.Device = uint32(exit.device.Index), exit.device.Name
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
