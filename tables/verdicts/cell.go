// SPDX-License-Identifier: Apache-2.0

// Package verdicts derives the verdicts of rulesets on classes of peers.
//
//	rulesets, peer-classes ──► policy-entries ─► verdict-sets, verdicts
//	                           compiled, policy-usage
//	rulesets, verdicts, map-verdicts ──► rule-cookies
//
// Neither rulesets nor classes change what they stand for. So what is said of a pair is
// computed once, and is deleted when the ruleset or the class is.
//
// When the maps are nearly full, what namespaces that use much of them want more is refused:
// a direction of a ruleset is closed instead, until the maps are half empty.
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
	cell.ProvidePrivate(roomOf),
	cell.Invoke(
		deriveVerdicts,
		deriveCookies,
	),
)
