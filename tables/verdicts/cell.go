// SPDX-License-Identifier: Apache-2.0

// Package verdicts derives the verdicts of rulesets on classes of peers.
//
//	rulesets, peer-classes ──► policy-entries ─► verdict-sets, verdicts
//	                           compiled, policy-usage, ruleset-refusals
//	rulesets, verdicts, map-verdicts ──► rule-cookies
//
// Neither rulesets nor classes change what they stand for. So what is said of a pair is
// computed once, and is deleted when the ruleset or the class is.
//
// When the maps are nearly full, a ruleset of a namespace that uses much of them is refused: its
// pods are isolated.
package verdicts

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the tables of verdicts.
var Cell = cell.Module(
	"verdicts",
	"Verdicts of rulesets on classes of peers",

	tables.OwnDesired(tables.NewPolicyEntryTable),
	tables.Own(tables.NewCompiledTable),
	tables.Own(tables.NewVerdictSetTable),
	tables.OwnDesired(tables.NewVerdictTable),
	tables.Own(tables.NewRuleCookieTable),
	tables.Own(tables.NewPolicyUsageTable),
	tables.Own(tables.NewRulesetRefusalTable),
	cell.ProvidePrivate(RoomOf),
	cell.Invoke(
		deriveVerdicts,
		deriveCookies,
	),
)
