// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type ipParams struct {
	cell.In

	IPs       statedb.RWTable[*tables.EgressIP]
	Pools     statedb.Table[*tables.EgressIPPool]
	Policies  statedb.Table[*tables.EgressPolicy]
	Nodes     statedb.Table[*tables.Node]
	Health    statedb.Table[*tables.GatewayHealth]
	Owners    statedb.Table[*tables.EgressIPOwner]
	Untaken   statedb.Table[*tables.EgressIPUntaken]
	Addresses statedb.Table[*tables.NodeAddress]
	Devices   statedb.Table[*tables.Device]
	Routes    statedb.Table[*tables.Route]
	LocalNode tables.LocalNode
}

// allIPs is the one key of the rule: how many addresses a node may have makes each of them
// depend on the others.
const allIPs = 0

func deriveIPs(p derive.Params, i ipParams) error { return derive.Register(p, i.declare()) }

// declare is the rule that finds the node for which this one votes, for each egress address that
// moves, and the node that has each one that is fixed.
func (i *ipParams) declare() derive.Rule[int] {
	return derive.Rule[int]{
		Outputs: []statedb.TableMeta{i.IPs},
		Seed:    []int{allIPs},
		Inputs: []derive.Input[int]{
			derive.FromIf(i.Pools, (*tables.EgressIPPool).ChangesAddresses,
				func(_ statedb.ReadTxn, _ *tables.EgressIPPool, mark func(int)) { mark(allIPs) }),
			derive.FromIf(i.Policies,
				func(old, new *tables.EgressPolicy) bool {
					return !slices.Equal(old.Gateways, new.Gateways) || old.Created != new.Created
				},
				func(_ statedb.ReadTxn, p *tables.EgressPolicy, mark func(int)) {
					if len(p.EgressIPs()) > 0 {
						mark(allIPs)
					}
				}),
			derive.FromIf(i.Nodes,
				func(old, new *tables.Node) bool {
					return old.Ready != new.Ready || old.Draining != new.Draining ||
						!slices.Equal(old.InternalIPs, new.InternalIPs) ||
						!maps.Equal(old.Labels, new.Labels)
				},
				func(_ statedb.ReadTxn, _ *tables.Node, mark func(int)) { mark(allIPs) }),
			derive.FromIf(i.Health,
				func(old, new *tables.GatewayHealth) bool { return old.State != new.State },
				func(_ statedb.ReadTxn, _ *tables.GatewayHealth, mark func(int)) { mark(allIPs) }),
			derive.From(i.Owners,
				func(_ statedb.ReadTxn, _ *tables.EgressIPOwner, mark func(int)) { mark(allIPs) }),
			derive.From(i.Untaken,
				func(_ statedb.ReadTxn, _ *tables.EgressIPUntaken, mark func(int)) { mark(allIPs) }),
			derive.From(i.Addresses,
				func(_ statedb.ReadTxn, a *tables.NodeAddress, mark func(int)) {
					if !tables.IsWithinNode(a.Device) && !a.Prefix.IsSingleIP() {
						mark(allIPs)
					}
				}),
			derive.FromIf(i.Devices, hasOtherNames,
				func(_ statedb.ReadTxn, d *tables.Device, mark func(int)) {
					if !tables.IsWithinNode(d.Name) {
						mark(allIPs)
					}
				}),
			derive.From(i.Routes,
				func(_ statedb.ReadTxn, r *tables.Route, mark func(int)) {
					if isDefault(r) {
						mark(allIPs)
					}
				}),
		},
		Compute: func(in statedb.ReadTxn, out statedb.WriteTxn, _ []int, _ func(int)) error {
			equal := (*tables.EgressIP).Equal
			return derive.Replace(out, i.IPs, equal, i.IPs.All(out), i.rows(in)...)
		},
	}
}

// rows returns a row for each address, in the order of addresses: of two that a node has only
// room for one of, the first gets it. An address of a Node does not move, whatever pools have:
// traffic towards it goes to that node.
func (i *ipParams) rows(in statedb.ReadTxn) (rows []*tables.EgressIP) {
	pools := statedb.Collect(i.Pools.All(in))
	if len(pools) == 0 {
		return nil
	}
	slices.SortFunc(pools, tables.InOrder[*tables.EgressIPPool])
	wanted := map[netip.Addr][]*tables.EgressPolicy{}
	for p := range i.Policies.List(in, tables.EgressPoliciesWithEgressIP(true)) {
		for _, addr := range p.EgressIPs() {
			wanted[addr] = append(wanted[addr], p)
		}
	}
	e := election{nodes: statedb.Collect(i.Nodes.All(in)), load: map[used]int{},
		state: func(node string) tables.PathState {
			if h, _, found := i.Health.Get(in, tables.GatewayHealthByNode(node)); found {
				return h.State
			}
			return ""
		},
		untaken: func(addr netip.Addr, node string) (*tables.EgressIPUntaken, bool) {
			row, _, found := i.Untaken.Get(in, tables.EgressIPUntakenBy(addr, node))
			return row, found
		}}
	for _, n := range e.nodes {
		for _, addr := range n.InternalIPs {
			delete(wanted, addr)
		}
	}
	elections := i.elections(in, e.state)
	for _, addr := range slices.SortedFunc(maps.Keys(wanted), netip.Addr.Compare) {
		at := slices.IndexFunc(pools, func(p *tables.EgressIPPool) bool { return p.Contains(addr) })
		if at < 0 {
			continue
		}
		policies := wanted[addr]
		slices.SortFunc(policies, tables.InOrder[*tables.EgressPolicy])
		row := &tables.EgressIP{Addr: addr, Pool: pools[at].Name, Fixed: pools[at].Fixed}
		for _, p := range policies {
			row.Policies = append(row.Policies, p.Name)
		}
		if pools[at].Fixed {
			findFixed(row, pools[at], policies[0], elections)
			rows = append(rows, row)
			continue
		}
		if e.elect(row, pools[at], policies[0], i.LocalNode.Name) {
			i.place(in, row)
		}
		i.findOwner(in, row, &e)
		rows = append(rows, row)
	}
	return rows
}

// findOwner says which node has an address, as it has told: one that may have it.
func (i *ipParams) findOwner(in statedb.ReadTxn, row *tables.EgressIP, e *election) {
	told, _, found := i.Owners.Get(in, tables.EgressIPOwnerByAddr(row.Addr))
	if !found {
		return
	}
	at := slices.IndexFunc(e.matching, func(n *tables.Node) bool {
		return n.UnderlayIP() == told.NodeAddr
	})
	if at >= 0 && e.rank(row.Addr, e.matching[at]) != lost {
		row.Owner, row.OwnerAddr = e.matching[at].Name, told.NodeAddr
	}
}

// place finds the device of this node for an address: the one whose subnet contains it, of the
// longest prefix, or else that of the default route.
func (i *ipParams) place(in statedb.ReadTxn, row *tables.EgressIP) {
	var subnet *tables.NodeAddress
	for a := range i.Addresses.All(in) {
		if a.Prefix.IsSingleIP() || !a.Prefix.Contains(row.Addr) || a.Scope != "global" ||
			tables.IsWithinNode(a.Device) {
			continue
		}
		if subnet == nil || cmp.Or(cmp.Compare(subnet.Prefix.Bits(), a.Prefix.Bits()),
			cmp.Compare(a.DeviceIndex, subnet.DeviceIndex)) < 0 {
			subnet = a
		}
	}
	var device *tables.Device
	noDevice := func(why string) {
		if row.Node == i.LocalNode.Name {
			row.Reason = "no device: " + why
		}
	}
	if subnet != nil {
		device, _, _ = i.Devices.Get(in, tables.DeviceByIndex(subnet.DeviceIndex))
	} else {
		g := gatewayParams{Devices: i.Devices, Addresses: i.Addresses, Routes: i.Routes}
		byDefault, err := g.exitByDefaultRoute(in)
		if device = byDefault.device; device == nil {
			noDevice(err.Error())
			return
		}
	}
	if device == nil {
		noDevice("that of the subnet is gone")
		return
	}
	row.IfIndex, row.Device = uint32(device.Index), device.Name
}
