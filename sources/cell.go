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
	for _, k := range []*objects.Kind{objects.NodeReportKind(), objects.EgressIPPoolKind()} {
		out.Source.Tables = append(out.Source.Tables, tables.SourceTable{Table: k.Store(&t).Table, What: k.Source()})
	}
	return out
}

func module(cfg objects.Config, kubernetes, election cell.Cell) cell.Cell {
	return cell.Module(
		"sources",
		"Observed objects",

		cell.Config(cfg),
		tables.Own(tables.NewNodeTable),
		tables.Own(tables.NewNamespaceTable),
		tables.Own(tables.NewServiceTable),
		tables.Own(tables.NewBackendSliceTable),
		tables.Own(tables.NewEgressPolicyTable),
		tables.Own(tables.NewNetworkPolicyTable),
		tables.Own(tables.NewCIDRGroupTable),
		tables.Own(tables.NewIdentityTable),
		tables.Own(tables.NewCiliumEndpointTable),
		tables.Own(tables.NewCiliumNodeTable),
		tables.Own(tables.NewEgressIPPoolTable),
		tables.Own(tables.NewNodeReportTable),
		tables.Own(tables.NewLeadershipTable),
		tables.Own(tables.NewObjectSourceTable),
		tables.Own(tables.NewCNIAttachmentTable),
		cell.ProvidePrivate(tables.NewEndpointTable),
		cell.Provide(
			statedb.RWTable[*tables.Endpoint].ToTable,
			objects.Config.Reporting,
			objects.Config.MovesEgressIPs,
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
