// SPDX-License-Identifier: Apache-2.0

// Package egress derives what the kernel has to know for egress gateways.
//
//	classes, selectors, egress-policies ──► egress-classes ──► egress-rules ──► sluice_egress
//	egress-policies, nodes ───────────────► egress-groups ──────────▲
//	devices, addresses, routes ──────────────────┴──► egress-gateways ────────► sluice_gateways
//	endpoints, class-members, egress-classes ───────► egress-sources ─────────► sluice_sources
//	egress-exits, devices ──────────────────────────► sysctls
//	class and map tables ───────────────────────────► class-readiness
//	policies, rules, groups ────────────────────────► egress-policy-status
package egress

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the tables of the egress gateway.
var Cell = cell.Module(
	"egress",
	"What egress policies want of the kernel",

	tables.Own(tables.NewEgressClassTable),
	tables.Own(tables.NewEgressGroupTable),
	tables.OwnDesired(tables.NewEgressGatewayTable),
	tables.OwnDesired(tables.NewEgressRuleTable),
	tables.OwnDesired(tables.NewEgressSourceTable),
	tables.Own(tables.NewEgressPolicyStatusTable),
	tables.OwnDesired(tables.NewSysctlTable),
	tables.Own(tables.NewClassReadinessTable),
	cell.Invoke(
		deriveClasses,
		deriveGroups,
		deriveGateways,
		deriveRules,
		deriveSources,
		derivePolicyStatus,
		deriveSysctls,
		deriveReadiness,
	),
)
