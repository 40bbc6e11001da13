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
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the tables of the egress gateway.
var Cell = cell.Module(
	"egress",
	"What egress policies want of the kernel",

	cell.ProvidePrivate(
		tables.NewEgressClassTable,
		tables.NewEgressGroupTable,
		tables.NewEgressGatewayTable,
		tables.NewEgressRuleTable,
		tables.NewEgressSourceTable,
		tables.NewEgressPolicyStatusTable,
		tables.NewSysctlTable,
		tables.NewClassReadinessTable,
	),
	cell.Provide(
		statedb.RWTable[*tables.EgressClass].ToTable,
		statedb.RWTable[*tables.EgressGroup].ToTable,
		statedb.RWTable[*tables.EgressGateway].ToTable,
		statedb.RWTable[*tables.EgressRule].ToTable,
		statedb.RWTable[*tables.EgressSource].ToTable,
		statedb.RWTable[*tables.EgressPolicyStatus].ToTable,
		statedb.RWTable[*tables.Sysctl].ToTable,
		statedb.RWTable[*tables.ClassReadiness].ToTable,

		tables.NewDesired[*tables.EgressGateway],
		tables.NewDesired[*tables.EgressRule],
		tables.NewDesired[*tables.EgressSource],
		tables.NewDesired[*tables.Sysctl],
	),
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
