// SPDX-License-Identifier: Apache-2.0

// Package trace follows one policy from its object to the kernel: the rows that
// come of it, table by table, and the entries of the maps.
//
//	egress policies   egress-policies ─► status ─► egress-rulesets ─► egress-rules ─► map-egress
//	                  ─► egress-groups ─► egress-gateways ─► map-gateways
//	                  ─► subject-routes ─► map-routes ─► pods
//	network policies  network-policies ─► status ─► compiled-policies ─► rulesets
//	                  ─► selectors ─► selector-matches
//	                  ─► policy-entries ─► map-policy ─► verdicts ─► map-verdicts
//	                  ─► subjects ─► map-subjects ─► pods
//
// All is looked up by indexes, so that a trace costs in proportion to the policy,
// however many others there are.
package trace

import (
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/condition"
)

// Cell provides the [Builder].
var Cell = cell.Module(
	"trace",
	"What follows from one policy",

	cell.Provide(New),
)

// Tables are the inputs of a trace.
type Tables struct {
	cell.In

	DB   *statedb.DB
	Pods statedb.Table[*tables.Pod]

	EgressPolicies statedb.Table[*tables.EgressPolicy]
	EgressStatus   statedb.Table[*tables.EgressPolicyStatus]
	EgressRulesets statedb.Table[*tables.EgressRuleset]
	EgressRules    statedb.Table[*tables.EgressRule]
	EgressMirror   statedb.Table[*tables.EgressMirror]
	EgressGroups   statedb.Table[*tables.EgressGroup]
	EgressGateways statedb.Table[*tables.EgressGateway]
	GatewayMirror  statedb.Table[*tables.GatewayMirror]
	Routes         statedb.Table[*tables.SubjectRoute]
	RouteMirror    statedb.Table[*tables.RouteMirror]

	NetworkPolicies statedb.Table[*tables.NetworkPolicy]
	NetworkStatus   statedb.Table[*tables.NetworkPolicyStatus]
	Compiled        statedb.Table[*tables.CompiledPolicy]
	Rulesets        statedb.Table[*tables.Ruleset]
	Selectors       statedb.Table[*tables.Selector]
	Matches         statedb.Table[*tables.SelectorMatch]
	Entries         statedb.Table[*tables.PolicyEntry]
	PolicyMirror    statedb.Table[*tables.PolicyMirror]
	Verdicts        statedb.Table[*tables.Verdict]
	VerdictMirror   statedb.Table[*tables.VerdictMirror]
	Subjects        statedb.Table[*tables.Subject]
	SubjectMirror   statedb.Table[*tables.SubjectMirror]
}

// Builder builds traces. It is safe for concurrent use.
type Builder struct{ t Tables }

// New returns a [Builder].
func New(t Tables) *Builder { return &Builder{t} }

// Trace has the rows that follow from a policy, all of one snapshot.
type Trace struct {
	Policy    string              `json:"policy"` // kind/namespace/name, or kind/name
	Condition condition.Condition `json:"condition,omitempty"`
	Drops     string              `json:"drops,omitempty"` // why it drops packets of its pods
	Steps     []Step              `json:"steps"`
}

// Step has the rows of one table that follow from the policy.
type Step struct {
	Table   string `json:"table"`
	Meaning string `json:"meaning"` // of these rows for the policy

	Columns    []string              `json:"columns"`
	Rows       [][]string            `json:"rows"`       // those that are not fine first
	Conditions []condition.Condition `json:"conditions"` // of each of Rows

	Total int `json:"total"` // rows, of which Rows are at most MaxRows
	condition.Counts
}

// MaxRows is how many rows of a step are shown.
const MaxRows = 100

// Error says why there is no trace of a policy.
type Error struct {
	Reason string
	Absent bool // there is no such policy
}

func (e Error) Error() string { return e.Reason }

// Build builds the trace of a policy by its kind/namespace/name, or kind/name. An
// error is an [Error].
func (t *Builder) Build(policy string) (*Trace, error) {
	id, err := tables.ParsePolicyID(policy)
	if err != nil {
		return nil, Error{Reason: err.Error()}
	}
	txn := t.t.DB.ReadTxn()
	s := &Trace{Policy: policy}
	if id.Kind == tables.PolicyEgress {
		err = t.egress(txn, s, id.Name.Name)
	} else {
		err = t.network(txn, s, id)
	}
	if err != nil {
		return nil, err
	}
	s.conclude()
	return s, nil
}

func absent(policy string) error {
	return Error{Reason: fmt.Sprintf("there is no policy %s", policy), Absent: true}
}

// conclude sums up the steps.
func (s *Trace) conclude() {
	var all condition.Counts
	for _, step := range s.Steps {
		all.Pending += step.Pending
		all.Errors += step.Errors
	}
	switch {
	case all.Errors > 0:
		s.Condition = condition.Error
	case all.Pending > 0:
		s.Condition = condition.Pending
	}
}
