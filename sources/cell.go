// SPDX-License-Identifier: Apache-2.0

// Package sources owns the tables of objects and has them filled: by the API
// server or from files, of which one is the source.
//
//	kubernetes ─┐
//	files ──────┴──► objects (decoders) ──► nodes, namespaces, endpoints, services, …
//
// Nothing but the parts of this module can write these tables. Devices, addresses
// and routes of the node have a source of their own, package netlink.
package sources

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/announced"
	"github.com/sluice-net/sluice/sources/cilium"
	"github.com/sluice-net/sluice/sources/cni"
	"github.com/sluice-net/sluice/sources/election"
	"github.com/sluice-net/sluice/sources/files"
	"github.com/sluice-net/sluice/sources/kubernetes"
	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// Cell provides the tables of objects, and keeps them up to date.
var Cell = module(objects.DefaultConfig, kubernetes.Cell, election.Cell)

// FakeCell is [Cell] for scripts: its API server is a [kubernetes.FakeAPI], told
// by script commands, and is the source unless --source says otherwise.
var FakeCell = module(
	objects.Config{Source: objects.SourceKubernetes, EndpointSource: objects.DefaultConfig.EndpointSource},
	kubernetes.FakeCell, election.FakeCell,
)

// source says which kinds of objects are read to which tables.
func source(cfg objects.Config, t objects.Tables) tables.SourceOut {
	out := tables.NewSourceOut(cfg.Source, t.Sources)
	for _, k := range objects.Kinds(cfg.EndpointSource) {
		out.Source.Tables = append(out.Source.Tables, tables.SourceTable{Table: k.Store(&t).Table, What: k.Source()})
	}
	reports := objects.NodeReportKind()
	out.Source.Tables = append(out.Source.Tables, tables.SourceTable{Table: reports.Store(&t).Table, What: reports.Source()})
	return out
}

func module(cfg objects.Config, kubernetes, election cell.Cell) cell.Cell {
	return cell.Module(
		"sources",
		"Observed objects",

		cell.Config(cfg),
		cell.ProvidePrivate(
			tables.NewNodeTable,
			tables.NewNamespaceTable,
			tables.NewEndpointTable,
			tables.NewServiceTable,
			tables.NewBackendSliceTable,
			tables.NewEgressPolicyTable,
			tables.NewNetworkPolicyTable,
			tables.NewCIDRGroupTable,
			tables.NewIdentityTable,
			tables.NewCiliumEndpointTable,
			tables.NewCiliumNodeTable,
			tables.NewNodeReportTable,
			tables.NewLeadershipTable,
			tables.NewObjectSourceTable,
			tables.NewCNIAttachmentTable,
		),
		cell.Provide(
			statedb.RWTable[*tables.Node].ToTable,
			statedb.RWTable[*tables.Namespace].ToTable,
			statedb.RWTable[*tables.Endpoint].ToTable,
			statedb.RWTable[*tables.Service].ToTable,
			statedb.RWTable[*tables.BackendSlice].ToTable,
			statedb.RWTable[*tables.EgressPolicy].ToTable,
			statedb.RWTable[*tables.NetworkPolicy].ToTable,
			statedb.RWTable[*tables.CIDRGroup].ToTable,
			statedb.RWTable[*tables.Identity].ToTable,
			statedb.RWTable[*tables.CiliumEndpoint].ToTable,
			statedb.RWTable[*tables.CiliumNode].ToTable,
			statedb.RWTable[*tables.NodeReport].ToTable,
			statedb.RWTable[*tables.Leadership].ToTable,
			statedb.RWTable[*tables.ObjectSource].ToTable,
			statedb.RWTable[*tables.CNIAttachment].ToTable,
			objects.Config.Reporting,
		),
		cell.Provide(source),
		cell.Invoke(objects.Config.Validate),
		cell.Invoke(reportInvalid, reportLocalNode),

		// Pods, Nodes and so on from an API server.
		kubernetes,
		// Which agent writes on objects there what all agents tell.
		election,
		// The same from a directory of manifests.
		files.Cell,
		// Endpoints from CiliumEndpoints and CiliumIdentities.
		cilium.Cell,
		// Interfaces of this node's pods, before the objects tell their addresses.
		cni.Cell,
		// Addresses of other nodes' pods, likewise, as the agents there announce them.
		announced.Cell,
	)
}
