// SPDX-License-Identifier: Apache-2.0

// Package verdicts derives the verdicts of rulesets on classes of peers.
//
//	rulesets, peer-classes ──► policy-entries ─► verdict-sets, verdicts
//	                           compiled
//	rulesets, verdicts, map-verdicts ──► rule-cookies
//
// Rulesets and classes never change their content. So the verdicts of a pair are computed
// once, and deleted when the ruleset or the class is deleted.
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
	cell.Invoke(
		deriveVerdicts,
		deriveCookies,
	),
)
