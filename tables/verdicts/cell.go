// SPDX-License-Identifier: Apache-2.0

// Package verdicts derives what rulesets say of classes of peers.
//
//	rulesets, peer-classes ──► policy-entries ─► verdict-sets, verdicts
//	                           compiled
//	rulesets, verdicts, map-verdicts ──► rule-cookies
//
// Neither rulesets nor classes change what they stand for. So what is said of a pair is
// computed once, and is deleted when the ruleset or the class is.
package verdicts

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/core"
)

// Cell derives the tables of verdicts.
var Cell = cell.Module(
	"verdicts",
	"Verdicts of rulesets on classes of peers",

	cell.ProvidePrivate(
		core.NewPolicyEntryTable,
		core.NewCompiledTable,
		core.NewVerdictSetTable,
		core.NewVerdictTable,
		tables.NewRuleCookieTable,
	),
	cell.Provide(
		statedb.RWTable[*core.PolicyEntry].ToTable,
		statedb.RWTable[*core.Compiled].ToTable,
		statedb.RWTable[*core.VerdictSet].ToTable,
		statedb.RWTable[*core.Verdict].ToTable,
		statedb.RWTable[*tables.RuleCookie].ToTable,

		tables.NewDesired[*core.PolicyEntry],
		tables.NewDesired[*core.Verdict],
	),
	cell.Invoke(
		deriveVerdicts,
		deriveCookies,
	),
)
