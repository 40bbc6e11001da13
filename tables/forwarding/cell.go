// SPDX-License-Identifier: Apache-2.0

// Package forwarding derives what the programs need beside the policies: where
// they run, and what they have to know of the node and of its neighbours.
//
//	egress-gateways, node-addresses, map-exits ──► egress-exits ──────► sluice_exits
//	egress-policies ─────────────────────────────► covered-prefixes ──► sluice_covered
//	services, backend-slices, members, endpoints ► frontends ─────────► sluice_services
//	nodes, cilium-nodes ─────────────────────────► cluster-nodes ─────► sluice_nodes
//	local-endpoints ─────────────────────────────► pod-devices ───────► sluice_devices
//	nodes, devices, monitors, network-policies ──► datapath-config ───► sluice_config
//	node-addresses, attachments ───────────────────▲
//	datapath-config, node-addresses, devices ────► overlay-devices ───► the VXLAN device
//	local-endpoints, egress-exits, devices ──────► attachments ───────► programs at devices
//	map-pods, map-exits, map-config ───────────────▲
//	attachments that are done ─────────────────────▲ sluice_exits, sluice_pods
package forwarding

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the tables of forwarding.
var Cell = cell.Module(
	"forwarding",
	"What the programs know and where they run",

	cell.Config(DefaultConfig),
	tables.OwnDesired(tables.NewEgressExitTable),
	tables.OwnDesired(tables.NewCoveredPrefixTable),
	tables.OwnDesired(tables.NewFrontendTable),
	tables.OwnDesired(tables.NewClusterNodeTable),
	tables.OwnDesired(tables.NewPodDeviceTable),
	tables.OwnDesired(tables.NewDatapathConfigTable),
	tables.OwnDesired(tables.NewOverlayDeviceTable),
	tables.OwnDesired(tables.NewAttachmentTable),
	cell.ProvidePrivate(
		newSettings,
	),
	cell.Invoke(
		deriveExits,
		deriveCovered,
		deriveFrontends,
		deriveNodes,
		derivePodDevices,
		deriveConfig,
		deriveOverlay,
		deriveAttachments,
	),
)
