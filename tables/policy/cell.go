// SPDX-License-Identifier: Apache-2.0

// Package policy derives the status of network policies on this node.
//
//	network-policies, compiled-policies ──┐
//	rulesets, subjects, pods ─────────────┼─► network-policy-status
//	policy-entries, verdicts, compiled ───┤
//	map-subjects, map-pods ───────────────┘
//
// A policy is in force when its present content is in the rulesets of all label sets that it
// selects, the kernel has each of these label sets in its ruleset, and each of their pods in
// its label set. The reconcilers write that a label set is in a ruleset only after all
// entries of the ruleset.
package policy

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/transform"
)

// Cell derives network-policy-status.
var Cell = cell.Module(
	"policy",
	"Status of network policies",

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

	// These show which policies select a label set whose ruleset is too large.
	Locals     statedb.Table[*tables.LocalEndpoint]
	Namespaces statedb.Table[*tables.Namespace]
}

// register derives the table. It reports no policy as in force before packets use this agent's slot
// of maps.
func register(p transform.Params, s params, slots statedb.Table[*tables.Slot]) error {
	rule := s.declare()
	rule.After = []statedb.TableMeta{slots}
	return transform.Register(p, rule)
}

func (s *params) declare() transform.Rule[tables.PolicyID] {
	return transform.Rule[tables.PolicyID]{
		Name:    s.Output.Name(),
		Outputs: []statedb.TableMeta{s.Output},
		Inputs: []transform.Input[tables.PolicyID]{
			transform.FromRow(s.Policies, nil, markPolicy),
			transform.FromRow(s.Compiled, nil, markCompiled),
			transform.FromRow(s.Rulesets, nil, s.markRuleset),
			transform.FromRow(s.Subjects, movesSubject, s.markSubject),
			transform.FromRow(s.Complete, nil, s.markComplete),
			transform.From(s.Entries, s.markEntry),
			transform.From(s.Verdicts, s.markVerdict),
			transform.FromRow(s.Mirrors, nil, s.markMirror),
			transform.FromRow(s.Pods, MovesPod, s.markPod),
			transform.FromRow(s.PodMirrors, MovesPodMirror, s.markPodMirror),
		},
		Compute: s.compute,
	}
}
