// SPDX-License-Identifier: Apache-2.0

// Package forwarding derives what the programs need beside the policies: where
// they run, and what they have to know of the node and of its neighbours.
//
//	egress-gateways, node-addresses, map-exits ──► egress-exits ──────► sluice_exits
//	egress-policies ─────────────────────────────► covered-prefixes ──► sluice_covered
//	nodes, cilium-nodes ─────────────────────────► cluster-nodes ─────► sluice_nodes
//	nodes, devices, monitors, network-policies ──► datapath-config ───► sluice_config
//	datapath-config, node-addresses, devices ────► overlay-devices ───► the VXLAN device
//	local-endpoints, egress-exits, devices ──────► attachments ───────► programs at devices
//	map-pods, map-exits, map-config ───────────────▲
//	attachments that are done ─────────────────────▲ sluice_exits, sluice_pods
package forwarding

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the tables of forwarding.
var Cell = cell.Module(
	"forwarding",
	"What the programs know and where they run",

	cell.Config(DefaultConfig),
	cell.ProvidePrivate(
		newSettings,
		tables.NewEgressExitTable,
		tables.NewCoveredPrefixTable,
		tables.NewClusterNodeTable,
		tables.NewDatapathConfigTable,
		tables.NewOverlayDeviceTable,
		tables.NewAttachmentTable,
	),
	cell.Provide(
		statedb.RWTable[*tables.EgressExit].ToTable,
		statedb.RWTable[*tables.CoveredPrefix].ToTable,
		statedb.RWTable[*tables.ClusterNode].ToTable,
		statedb.RWTable[*tables.DatapathConfig].ToTable,
		statedb.RWTable[*tables.OverlayDevice].ToTable,
		statedb.RWTable[*tables.Attachment].ToTable,

		tables.NewDesired[*tables.EgressExit],
		tables.NewDesired[*tables.CoveredPrefix],
		tables.NewDesired[*tables.ClusterNode],
		tables.NewDesired[*tables.DatapathConfig],
		tables.NewDesired[*tables.OverlayDevice],
		tables.NewDesired[*tables.Attachment],
	),
	cell.Invoke(
		deriveExits,
		deriveCovered,
		deriveNodes,
		deriveConfig,
		deriveOverlay,
		deriveAttachments,
	),
)
