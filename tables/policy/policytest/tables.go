// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Tables are the base tables that a [World] is read from.
type Tables struct {
	cell.In

	DB         *statedb.DB
	Namespaces statedb.Table[*tables.Namespace]
	Nodes      statedb.Table[*tables.Node]
	Cilium     statedb.Table[*tables.CiliumNode]
	Endpoints  statedb.Table[*tables.Endpoint]
	Services   statedb.Table[*tables.Service]
	Backends   statedb.Table[*tables.BackendSlice]
	Groups     statedb.Table[*tables.CIDRGroup]
	Policies   statedb.Table[*tables.NetworkPolicy]
	Egress     statedb.Table[*tables.EgressPolicy]
	Addresses  statedb.Table[*tables.NodeAddress]
	Routes     statedb.Table[*tables.Route]
	LocalNode  tables.LocalNode
}

// World returns the content of the tables.
func (t *Tables) World(txn statedb.ReadTxn, o Options) *World {
	w := &World{
		Options: o, LocalNode: t.LocalNode.Name,
		Namespaces: statedb.Collect(t.Namespaces.All(txn)), Nodes: statedb.Collect(t.Nodes.All(txn)),
		Endpoints: statedb.Collect(t.Endpoints.All(txn)), Services: statedb.Collect(t.Services.All(txn)),
		Backends: statedb.Collect(t.Backends.All(txn)), Groups: statedb.Collect(t.Groups.All(txn)),
		Policies: statedb.Collect(t.Policies.All(txn)), Cilium: statedb.Collect(t.Cilium.All(txn)),
		Egress: statedb.Collect(t.Egress.All(txn)),
	}
	for a := range t.Addresses.All(txn) {
		w.HostAddrs = append(w.HostAddrs, a.Addr)
	}
	for r := range t.Routes.All(txn) {
		if r.Type == "local" && r.Destination.IsSingleIP() {
			w.HostAddrs = append(w.HostAddrs, r.Destination.Addr())
		}
	}
	return w
}
