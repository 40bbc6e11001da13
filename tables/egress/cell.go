// SPDX-License-Identifier: Apache-2.0

// Package egress derives how traffic of egress policies leaves the cluster, and the status of these
// policies on this node.
//
//	egress-policies, nodes ──────────────────────────► probe-targets
//	egress-groups, devices, node-addresses, routes ──► egress-gateways ──► sluice_gateways
//	egress-ip-pools, egress-policies, nodes ─────────► egress-ips
//	egress-ips, egress-ip-pools, nodes ──────────────► egress-blocks ────► sluice_blocks
//	                                                   port-owners ──────► sluice_owners
//	egress-policies ─────────────────────────────────► egress-limits ──► sluice_limits
//	egress-bgp-peers, nodes ─────────────────────────► egress-bgp-sessions
//	egress-exits, devices ───────────────────────────► sysctls
//	egress-policies, egress-groups, egress-gateways ─┐
//	egress-rulesets, egress-rules, subject-routes ───┼─► egress-policy-status
//	subjects, pods, map-routes, map-pods ────────────┘
//
// Groups and rules come from tables/subjects.
package egress

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the tables of the egress gateway.
var Cell = cell.Module(
	"egress",
	"How traffic of egress policies leaves",

	tables.OwnDesired(tables.NewEgressGatewayTable),
	tables.Own(tables.NewProbeTargetTable),
	tables.Own(tables.NewEgressIPTable),
	tables.OwnDesired(tables.NewEgressBlockTable),
	tables.OwnDesired(tables.NewPortOwnerTable),
	tables.OwnDesired(tables.NewEgressLimitTable),
	tables.OwnDesired(tables.NewEgressBGPSessionTable),
	tables.Own(tables.NewEgressPolicyStatusTable),
	tables.OwnDesired(tables.NewSysctlTable),
	cell.Invoke(
		deriveIPs, deriveSessions, deriveBlocks, deriveGateways, deriveTargets, deriveLimits,
		derivePolicyStatus, deriveSysctls,
	),
)
