// SPDX-License-Identifier: Apache-2.0

// Package sources owns the tables of objects and has them filled: by the API
// server or from files, of which one is the source.
//
//	kubernetes ─┐
//	files ──────┴──► objects (decoders) ──► nodes, namespaces, endpoints, services, …
//
// The operator reads fewer kinds, and which operator leads:
//
//	kubernetes ──► nodes, policies, egress-ip-pools, egress-voters, namespaces, node-reports
//	election ────► leadership
//	time ────────► clock
//
// Nothing but the parts of these modules can write these tables. Devices, addresses
// and routes of the node have a source of their own, package netlink.
package sources

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/announced"
	"github.com/sluice-net/sluice/sources/cilium"
	"github.com/sluice-net/sluice/sources/clock"
	"github.com/sluice-net/sluice/sources/cni"
	"github.com/sluice-net/sluice/sources/election"
	"github.com/sluice-net/sluice/sources/files"
	"github.com/sluice-net/sluice/sources/kubernetes"
	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/sources/pools"
	"github.com/sluice-net/sluice/tables"
)

// Cell provides the tables of objects, and keeps them up to date.
var Cell = module(objects.DefaultConfig, kubernetes.Cell)

// FakeCell is [Cell] for scripts: its API server is a [kubernetes.FakeAPI], told
// by script commands, and is the source unless --source says otherwise.
var FakeCell = module(
	objects.Config{Source: objects.SourceKubernetes, EndpointSource: objects.DefaultConfig.EndpointSource},
	kubernetes.FakeCell,
)

// OperatorCell provides what the operator reads, and keeps it up to date.
var OperatorCell = operator(kubernetes.Cell, election.Cell)

// OperatorFakeCell is [OperatorCell] for scripts, as [FakeCell] is [Cell].
var OperatorFakeCell = operator(kubernetes.FakeCell, election.FakeCell)

// source says which kinds of objects are read to which tables.
func source(cfg objects.Config, reads objects.Reads, t objects.Tables) tables.SourceOut {
	out := tables.NewSourceOut(cfg.Source, t.Sources)
	for _, k := range reads {
		out.Source.Tables = append(out.Source.Tables, tables.SourceTable{Table: k.Store(&t).Table, What: k.Source()})
	}
	return out
}

// operator is the module of the operator, which reads from an API server only.
func operator(api, elections cell.Cell) cell.Cell {
	return cell.Module(
		"sources",
		"Observed objects",

		tables.Own(tables.NewNodeTable),
		tables.Own(tables.NewEgressPolicyTable),
		tables.Own(tables.NewNetworkPolicyTable),
		tables.Own(tables.NewEgressIPPoolTable),
		tables.Own(tables.NewEgressVotersTable),
		tables.Own(tables.NewNamespaceTable),
		tables.Own(tables.NewNodeReportTable),
		tables.Own(tables.NewLeadershipTable),
		tables.Own(tables.NewObjectSourceTable),
		cell.Config(objects.OperatorConfig{ObjectStatus: true}),
		cell.Provide(objects.OperatorConfig.Objects, objects.Config.Reporting,
			objects.Config.OperatorReads, objects.Config.MovesEgressIPs,
			func() kubernetes.Writes { return true }),
		cell.Provide(source),

		// Nodes, policies, and what agents report.
		api,
		// Which operator does something about them.
		elections,
		// When.
		clock.Cell,
		// Addresses of policies, as pools give them.
		pools.Cell,
	)
}

func module(cfg objects.Config, api cell.Cell) cell.Cell {
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
		tables.Own(tables.NewEgressVotersTable),
		tables.Own(tables.NewEgressBGPPeerTable),
		tables.Own(tables.NewObjectSourceTable),
		tables.Own(tables.NewCNIAttachmentTable),
		cell.ProvidePrivate(tables.NewEndpointTable),
		cell.Provide(
			statedb.RWTable[*tables.Endpoint].ToTable,
			objects.Config.Reporting,
			objects.Config.Reads,
			// The status of policies, and addresses of pods.
			func(c objects.Config, p tables.CNIPlugin) kubernetes.Writes {
				return kubernetes.Writes(c.ObjectStatus || p.Enabled || c.MovesEgressIPs().Enabled)
			},
			objects.Config.MovesEgressIPs,
			objects.Config.AnnouncesByBGP,
		),
		cell.Provide(source),
		cell.Invoke(objects.Config.Validate),
		cell.Invoke(reportInvalid, reportLocalNode),

		// Pods, Nodes and so on from an API server.
		api,
		// The same from a directory of manifests.
		files.Cell,
		// Endpoints from CiliumEndpoints and CiliumIdentities.
		cilium.Cell,
		// Interfaces of this node's pods, before the objects tell their addresses.
		cni.Cell,
		// Addresses of other nodes' pods, likewise, as the agents there announce them.
		announced.Cell,
		// Addresses of policies, as pools give them.
		pools.Cell,
	)
}
