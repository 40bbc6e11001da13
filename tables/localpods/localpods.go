// SPDX-License-Identifier: Apache-2.0

// Package localpods derives where the pods of this node are.
//
//	endpoints, cni-attachments ────────────────┐
//	routes, neighbours, bridge-entries, devices ┴─► local-endpoints
//
// A pod's device is the one that the CNI plugin reported, or the one to which a route or a
// neighbour entry leads.
package localpods

import (
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// Cell derives local-endpoints.
var Cell = cell.Module(
	"local-pods",
	"Where the pods of this node are",

	tables.Own(tables.NewLocalEndpointTable),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Output      statedb.RWTable[*tables.LocalEndpoint]
	Endpoints   statedb.Table[*tables.Endpoint]
	Attachments statedb.Table[*tables.CNIAttachment]
	Devices     statedb.Table[*tables.Device]
	Routes      statedb.Table[*tables.Route]
	Neighbours  statedb.Table[*tables.Neighbour]
	Bridges     statedb.Table[*tables.BridgeEntry]
	LocalNode   tables.LocalNode
}

func register(p derive.Params, l params) error { return derive.Register(p, l.declare()) }

func (l *params) declare() derive.Rule[netip.Addr] {
	return derive.Rule[netip.Addr]{
		Outputs: []statedb.TableMeta{l.Output},
		Inputs: []derive.Input[netip.Addr]{
			derive.FromIf(l.Endpoints, movesPod, l.markEndpoint),
			derive.From(l.Attachments, l.markAttachment),
			derive.From(l.Routes, markRoute),
			derive.From(l.Neighbours, markNeighbour),
			derive.From(l.Bridges, l.markBridge),
			derive.FromIf(l.Devices, movesDevice, l.markDevice),
		},
		Compute: derive.Each(
			l.Output, tables.LocalEndpointByAddr, (*tables.LocalEndpoint).Equal, l.row),
	}
}

// movesPod reports whether a change of an endpoint matters here.
func movesPod(old, new *tables.Endpoint) bool {
	return old.LabelSet.ID != new.LabelSet.ID || old.Node != new.Node || !old.SameClaim(new)
}

func movesDevice(old, new *tables.Device) bool {
	return old.Name != new.Name || old.Type != new.Type || old.MasterIndex != new.MasterIndex
}

// markEndpoint marks the addresses of a local pod, and those of another node's pod that a local pod
// claims, had, or was given.
func (l *params) markEndpoint(in statedb.ReadTxn, e *tables.Endpoint, mark func(netip.Addr)) {
	for _, addr := range e.Addrs {
		_, _, had := l.Output.Get(in, tables.LocalEndpointByAddr(addr))
		_, _, given := l.Attachments.Get(in, tables.CNIAttachmentsByAddr(addr))
		local := had || given || e.Node == l.LocalNode.Name
		for claimant := range l.Endpoints.List(in, tables.EndpointsByAddr(addr)) {
			local = local || claimant.Node == l.LocalNode.Name
		}
		if local {
			mark(addr)
		}
	}
}

func (l *params) markAttachment(_ statedb.ReadTxn, a *tables.CNIAttachment, mark func(netip.Addr)) {
	for _, addr := range a.Addrs {
		mark(addr)
	}
}

func markRoute(_ statedb.ReadTxn, r *tables.Route, mark func(netip.Addr)) {
	if r.Destination.IsSingleIP() && r.Table == tables.RouteTableMain {
		mark(r.Destination.Addr())
	}
}

func markNeighbour(_ statedb.ReadTxn, n *tables.Neighbour, mark func(netip.Addr)) { mark(n.Addr) }

// markBridge marks the addresses whose neighbor has the MAC address, or had it when the pod
// was found.
func (l *params) markBridge(in statedb.ReadTxn, b *tables.BridgeEntry, mark func(netip.Addr)) {
	for n := range l.Neighbours.List(in, tables.NeighboursByDevice(b.BridgeIndex)) {
		if n.MAC == b.MAC {
			mark(n.Addr)
		}
	}
	for row := range l.Output.List(in, tables.LocalEndpointsByDevice(b.BridgeIndex)) {
		if row.MAC == b.MAC {
			mark(row.Addr)
		}
	}
}

// markDevice marks the addresses to which the device leads, or led.
func (l *params) markDevice(in statedb.ReadTxn, d *tables.Device, mark func(netip.Addr)) {
	for row := range l.Output.List(in, tables.LocalEndpointsByDevice(d.Index)) {
		mark(row.Addr)
	}
	for r := range l.Routes.List(in, tables.RoutesByDevice(d.Index)) {
		markRoute(in, r, mark)
	}
	for n := range l.Neighbours.List(in, tables.NeighboursByDevice(d.Index)) {
		mark(n.Addr)
	}
	for b := range l.Bridges.List(in, tables.BridgeEntriesByDevice(d.Index)) {
		l.markBridge(in, b, mark)
	}
	for a := range tables.ListIfAny(in, l.Attachments, tables.CNIAttachmentsByDevice(d.Index)) {
		l.markAttachment(in, a, mark)
	}
}
