// SPDX-License-Identifier: Apache-2.0

// Package policy derives the status of network policies on this node.
//
//	network-policies, compiled-policies ──┐
//	rulesets, subjects, pods ─────────────┼─► network-policy-status
//	policy-entries, verdicts, compiled ───┤
//	map-subjects, map-pods ───────────────┘
//
// A policy is applied when its present content is in the rulesets of all label sets that it
// selects, the kernel has each of these label sets in its ruleset, and each of their pods in
// its label set. The reconcilers write that a label set is in a ruleset only after all
// entries of the ruleset.
package policy

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// Cell derives network-policy-status.
var Cell = cell.Module(
	"policy",
	"The status of network policies",

	tables.Own(tables.NewNetworkPolicyStatusTable),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Output   statedb.RWTable[*tables.NetworkPolicyStatus]
	Policies statedb.Table[*tables.NetworkPolicy]
	Compiled statedb.Table[*tables.CompiledPolicy]
	Rulesets statedb.Table[*tables.Ruleset]
	Subjects statedb.Table[*tables.Subject]
	Entries  statedb.Table[*tables.PolicyEntry]
	Verdicts statedb.Table[*tables.Verdict]
	Complete statedb.Table[*tables.Compiled] // rulesets with all entries computed
	Mirrors  statedb.Table[*tables.SubjectMirror]

	Placement
}

// register reports no policy as applied before packets use the slot of maps that the agent writes.
func register(p derive.Params, s params, slots statedb.Table[*tables.Slot]) error {
	rule := s.declare()
	rule.After = []statedb.TableMeta{slots}
	return derive.Register(p, rule)
}

func (s *params) declare() derive.Rule[tables.PolicyID] {
	return derive.Rule[tables.PolicyID]{
		Outputs: []statedb.TableMeta{s.Output},
		Inputs: []derive.Input[tables.PolicyID]{
			derive.From(s.Policies, markPolicy),
			derive.From(s.Compiled, markCompiled),
			derive.From(s.Rulesets, markRuleset),
			derive.FromIf(s.Subjects, movesSubject, s.markSubject),
			derive.From(s.Complete, s.markComplete),
			derive.FromChange(s.Entries, s.markEntry),
			derive.FromChange(s.Verdicts, s.markVerdict),
			derive.From(s.Mirrors, s.markMirror),
			derive.FromIf(s.Pods, MovesPod, s.markPod),
			derive.FromIf(s.PodMirrors, MovesPodMirror, s.markPodMirror),
		},
		Compute: s.compute,
	}
}
