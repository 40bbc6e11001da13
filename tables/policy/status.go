// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// round is one call of compute, with what it has computed so far.
type round struct {
	*params
	in       statedb.ReadTxn
	refusals map[uint32]string // what the kernel refused of a ruleset
}

func (s *params) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, ids []tables.PolicyID, mark func(tables.PolicyID),
) error {
	c := &round{params: s, in: in, refusals: map[uint32]string{}}
	row := func(_ statedb.ReadTxn, id tables.PolicyID) *tables.NetworkPolicyStatus { return c.row(id) }
	return derive.Each(s.Output, tables.NetworkPolicyStatusByPolicy,
		(*tables.NetworkPolicyStatus).Equal, row)(in, out, ids, mark)
}

// row returns the status of a policy, nil if there is no such policy.
func (c *round) row(id tables.PolicyID) *tables.NetworkPolicyStatus {
	p, revision, found := c.Policies.Get(c.in, tables.NetworkPolicyByID(id))
	if !found {
		return nil
	}
	row := &tables.NetworkPolicyStatus{
		Policy: id, Errors: texts(p.Errors), Unsupported: texts(p.Unsupported),
		Generation: p.Generation, Wanted: revision,
	}
	if compiled, _, found := c.Compiled.Get(c.in, tables.CompiledPolicyByID(id)); found {
		row.Compiled = compiled.Revision
	}
	isCompiled := row.Compiled == row.Wanted
	row.WasApplied = c.wasApplied(row)
	outside, isolating := false, false
	for _, subject := range c.selected(id) {
		row.EntriesWanted++
		outside = outside || c.Outside(c.in, subject.Number)
		if refused := c.refused(subject); refused != "" {
			row.Failed++
			row.Refused = cmp.Or(row.Refused, refused)
		}
		isProgrammed := c.isProgrammed(subject)
		switch tooLarge := c.tooLarge(subject); {
		case tooLarge == "" && isCompiled && isProgrammed:
			row.Programmed++
		case tooLarge != "":
			isolating = isolating || !isProgrammed
			if row.TooLarge == "" || tooLarge < row.TooLarge { // the same one in any order
				row.TooLarge = tooLarge
			}
		}
	}
	row.Applied = isCompiled && row.Programmed == row.EntriesWanted && !outside &&
		!c.hasFormer(id, !row.WasApplied)
	row.WasApplied = row.WasApplied || row.Applied
	isIsolated := row.TooLarge != "" && isCompiled && !isolating && !outside
	row.State = state(row, isIsolated)
	return row
}

func state(row *tables.NetworkPolicyStatus, isIsolated bool) tables.PolicyState {
	switch {
	case isIsolated:
		return tables.PolicyTooLarge
	case len(row.Errors) > 0:
		return tables.PolicyInvalid
	case len(row.Unsupported) > 0:
		return tables.PolicyUnsupported
	case row.Failed > 0:
		return tables.PolicyFailed
	case !row.Applied:
		return tables.PolicyPending
	case row.EntriesWanted == 0:
		return tables.PolicyNotHere
	}
	return tables.PolicyInForce
}

// wasApplied reports whether the revision that is wanted has been applied before.
func (c *round) wasApplied(row *tables.NetworkPolicyStatus) bool {
	former, _, found := c.Output.Get(c.in, tables.NetworkPolicyStatusByPolicy(row.Policy))
	return found && former.Wanted == row.Wanted && former.WasApplied
}

// selected returns the subjects of this node whose rulesets a policy is part of.
func (c *round) selected(id tables.PolicyID) (selected []*tables.Subject) {
	for r := range tables.ListIfAny(c.in, c.Rulesets, tables.RulesetsByPolicy(id)) {
		for s := range c.Subjects.List(c.in, tables.SubjectsByRuleset(r.Number)) {
			if !s.Undesired {
				selected = append(selected, s)
			}
		}
	}
	return selected
}

// tooLarge says why the ruleset of a subject is not what its policies say, empty if it is.
func (c *round) tooLarge(s *tables.Subject) string {
	r, _, found := c.Rulesets.Get(c.in, tables.RulesetByNumber(s.Ruleset))
	if !found {
		return ""
	}
	return r.TooLarge
}

// isProgrammed reports whether the kernel has a subject in its desired ruleset.
func (c *round) isProgrammed(s *tables.Subject) bool {
	return isDone(s) && InKernel(c.in, c.Mirrors, s.MapKey(), s.MapValue())
}

// refused says which entry of those that a subject needs the kernel refused, empty if none.
func (c *round) refused(s *tables.Subject) string {
	if IsRefused(s.Status) {
		return s.Status.GetError()
	}
	if refused := c.Refused(c.in, s.Number); refused != "" {
		return refused
	}
	refused, known := c.refusals[s.Ruleset]
	if !known {
		refused = c.refusedOf(s.Ruleset)
		c.refusals[s.Ruleset] = refused
	}
	return refused
}

// refusedOf says which entry of a ruleset the kernel refused: a policy entry, or a verdict that one
// waits for.
func (c *round) refusedOf(ruleset uint32) string {
	for e := range c.Entries.List(c.in, tables.PolicyEntriesPendingOfRuleset(ruleset)) {
		if IsRefused(e.Status) {
			return e.Status.GetError()
		}
		for v := range tables.ListIfAny(c.in, c.Verdicts, tables.VerdictsPending(e.Set)) {
			if IsRefused(v.Status) {
				return v.Status.GetError()
			}
		}
	}
	return ""
}

// hasFormer reports whether the kernel still has former rules of a policy: in a subject that is
// about to leave its ruleset; or, if the present policy has not been applied yet, in an undesired
// subject that pods leave, which keeps the rules that it had. Once the policy was applied, all
// rulesets have its present rules.
func (c *round) hasFormer(id tables.PolicyID, countsLeaving bool) bool {
	for r := range tables.ListIfAny(c.in, c.Rulesets, tables.RulesetsByPolicy(id)) {
		for m := range c.Mirrors.List(
			c.in, tables.MirrorsTo[bpf.SubjectKey, bpf.SubjectValue](r.Number),
		) {
			s, _, found := c.Subjects.Get(c.in, tables.SubjectByNumber(m.Key.Subject))
			switch {
			case !found: // no pod is in it any more
			case s.Ruleset != r.Number:
				return true
			case s.Undesired && countsLeaving && c.Has(c.in, s.Number):
				return true
			}
		}
	}
	return false
}

func texts(errors []tables.FieldError) []string {
	var list []string
	for _, e := range errors {
		list = append(list, e.Error())
	}
	slices.Sort(list)
	return list
}
