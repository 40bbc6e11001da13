// SPDX-License-Identifier: Apache-2.0

// Package policy derives the verdicts of network policies.
//
//	network-policies, class-members ──► policy-rules ──► policy-entries ──► sluice_policy
//	              class-members ─────────────────────────────▲ │
//	                                                           ├──► rule-cookies
//	              map-policy, map-classes ─────────────────────┴──► policy-readiness
//	network-policies, policy-rules, policy-entries, map-policy ───► network-policy-status
//
// Verdicts are those on pairs of a subject class and a peer class, or any peer.
// They are a function of what both classes stand for, and of the rules in force,
// of nothing else: see [Computer.Entries]. A change of a class or of a rule has the pairs
// computed anew that it may concern, which is few beside all there are.
//
// What a policy goes through:
//
//   - It is new, or has changed. Its selectors are taken into the classes, which
//     changes no verdict, as no rule in force names them yet. Meanwhile what it said
//     before stays in force.
//   - All its selectors are settled: each address is in a class that tells whether
//     it is chosen. Its rules are replaced all at once, and then the entries.
//   - A rule that is no more in force is retired, and keeps its selectors alive
//     until the kernel has nothing left that comes of it.
package policy

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the tables of network policies.
var Cell = cell.Module(
	"policy",
	"What network policies want of the kernel",

	tables.Own(tables.NewEnforcedPolicyTable),
	tables.OwnDesired(tables.NewPolicyEntryTable),
	tables.Own(tables.NewRuleCookieTable),
	tables.Own(tables.NewPolicyReadinessTable),
	tables.Own(tables.NewNetworkPolicyStatusTable),
	cell.Invoke(
		deriveRules,
		deriveEntries,
		deriveCookies,
		deriveReadiness,
		deriveStatus,
	),
)
