// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"iter"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type statusParams struct {
	cell.In

	Tables
	Output   statedb.RWTable[*tables.NetworkPolicyStatus]
	Policies statedb.Table[*tables.NetworkPolicy]
	Entries  statedb.Table[*tables.PolicyEntry]
	Pods     statedb.Table[*tables.LocalEndpoint]
}

// status derives network-policy-status. The entries of a policy are counted as
// they come and go, and pairs of classes are watched from a change of the policy
// until they are settled: a policy may be about many of both.
type status struct {
	statusParams
	pairs    pairs
	computer *Computer

	unsettled *settlement[tables.PolicyID]
	counts    map[tables.PolicyID]entryCounts
}

type entryCounts struct{ wanted, programmed, failed int }

// deriveStatus keeps how each policy fares on this node.
func deriveStatus(p derive.Params, params statusParams) error {
	s := &status{
		statusParams: params,
		pairs:        pairs{Tables: params.Tables, Entries: params.Entries},
		computer:     NewComputer(params.Tables),
		unsettled:    newSettlement[tables.PolicyID](),
		counts:       map[tables.PolicyID]entryCounts{},
	}
	_, err := derive.Register(p, derive.Rule[tables.PolicyID, *tables.NetworkPolicyStatus]{
		Output: s.Output,
		Inputs: []derive.Input[tables.PolicyID]{
			derive.FromKey(s.Policies, func(_ statedb.ReadTxn, p *tables.NetworkPolicy, affect func(tables.PolicyID)) { affect(p.ID()) }),
			derive.FromChange(s.Rules, s.policyChanged),
			fromClasses(s.Members, s.classChanged),
			derive.FromChange(s.Entries, s.entryChanged),
			derive.FromChange(s.Pods, s.podChanged),
			derive.FromChange(s.Kernel, func(_ statedb.ReadTxn, old, new *tables.PolicyMapEntry, affect func(tables.PolicyID)) {
				if old == nil || new == nil || old.Value != new.Value {
					s.unsettled.touch(pairOfEitherInKernel(old, new), affect)
				}
			}),
		},
		Existing: func(txn statedb.ReadTxn, id tables.PolicyID) iter.Seq2[*tables.NetworkPolicyStatus, statedb.Revision] {
			return s.Output.List(txn, tables.NetworkPolicyStatusByPolicy(id))
		},
		Plan: func(txn statedb.ReadTxn, ids []tables.PolicyID) ([]tables.PolicyID, func(tables.PolicyID) []*tables.NetworkPolicyStatus) {
			s.unsettled.check(func(pair tables.PolicyPair) bool { return s.pairs.settled(txn, s.computer, pair) })
			return ids, func(id tables.PolicyID) []*tables.NetworkPolicyStatus { return s.rows(txn, id) }
		},
		Equal: (*tables.NetworkPolicyStatus).Equal,
	})
	return err
}

// policyChanged affects a policy, which is not settled before the pairs are that
// its rules are about.
func (s *status) policyChanged(txn statedb.ReadTxn, old, new *tables.EnforcedPolicy, affect func(tables.PolicyID)) {
	row := new
	if row == nil {
		row = old
	}
	affect(row.Policy)
	s.pairs.byPolicy(txn, old, new, func(pair tables.PolicyPair) { s.unsettled.add(pair, row.Policy) })
}

// classChanged affects the policies of which it may now matter whether they
// choose somebody here.
func (s *status) classChanged(txn statedb.ReadTxn, old, new *tables.ClassMember, affect func(tables.PolicyID)) {
	row := new
	if row == nil {
		row = old
	}
	if !row.OfClass || !ofPolicies(row.Role) {
		return
	}
	// What waits for the classes as they were may have nothing to wait for now.
	s.unsettled.touchClass(old, new, affect)
	if !s.unsettled.empty() {
		s.pairs.byClass(txn, old, new, func(pair tables.PolicyPair) { s.unsettled.touch(pair, affect) })
	}
	if row.Role != bpf.RoleSubject {
		return
	}
	ids, _ := signatureChange(old, new)
	s.choosing(txn, ids, affect)
}

// choosing affects the policies that have rules about some selectors' pods.
func (s *status) choosing(txn statedb.ReadTxn, ids []tables.SelectorID, affect func(tables.PolicyID)) {
	for _, id := range ids {
		for r := range tables.EnforcedRulesBySubject(txn, s.Rules, id) {
			affect(r.Policy)
		}
	}
}

// podChanged affects the policies that choose a pod, if it matters to them whether
// the kernel has it in its class.
func (s *status) podChanged(txn statedb.ReadTxn, old, new *tables.LocalEndpoint, affect func(tables.PolicyID)) {
	if old != nil && new != nil && old.SubjectClass == new.SubjectClass && old.WaitsFor == new.WaitsFor && old.Status.Kind == new.Status.Kind {
		return
	}
	for _, row := range []*tables.LocalEndpoint{old, new} {
		if row == nil {
			continue
		}
		for _, class := range [...]uint32{row.SubjectClass, row.WaitsFor} {
			if c := tables.ClassRow(txn, s.Members, bpf.ClassKey{Role: bpf.RoleSubject, Number: class}); c != nil {
				s.choosing(txn, c.Selectors, affect)
			}
		}
	}
}

// pods counts the pods of a selector that the kernel does not have in their class,
// and those of them that it refused.
func (s *status) pods(txn statedb.ReadTxn, subject tables.SelectorID) (outside, refused int) {
	for c := range s.Members.List(txn, tables.ClassRowsBySelector(subject)) {
		for range s.Pods.List(txn, tables.LocalEndpointsWaitingFor(c.Class)) {
			outside++
		}
		for pod := range s.Pods.List(txn, tables.LocalEndpointsBySubjectClass(c.Class)) {
			switch pod.Status.Kind {
			case reconciler.StatusKindDone, reconciler.StatusKindRefreshing:
			case reconciler.StatusKindError:
				refused++
				outside++
			default:
				outside++
			}
		}
	}
	return outside, refused
}

func (s *status) entryChanged(_ statedb.ReadTxn, old, new *tables.PolicyEntry, affect func(tables.PolicyID)) {
	pair := pairOfEither(old, new)
	for id := range policiesOf(old) {
		s.count(old, id, -1)
		affect(id)
		if new == nil || !old.Equal(new) {
			s.unsettled.add(pair, id)
		}
	}
	for id := range policiesOf(new) {
		s.count(new, id, 1)
		affect(id)
	}
	if old == nil || new == nil || !old.Equal(new) {
		s.unsettled.touch(pair, affect)
	}
}

// policiesOf yields the policies that decide an entry, each once.
func policiesOf(e *tables.PolicyEntry) iter.Seq[tables.PolicyID] {
	return func(yield func(tables.PolicyID) bool) {
		if e == nil {
			return
		}
		for i, id := range e.Rules {
			if i > 0 && id.Policy == e.Rules[i-1].Policy {
				continue
			}
			if !yield(id.Policy) {
				return
			}
		}
	}
}

// count counts an entry of a policy n times.
func (s *status) count(e *tables.PolicyEntry, id tables.PolicyID, n int) {
	c := s.counts[id]
	c.wanted += n
	switch e.Status.Kind {
	case reconciler.StatusKindDone, reconciler.StatusKindRefreshing:
		c.programmed += n
	case reconciler.StatusKindError:
		c.failed += n
	}
	if s.counts[id] = c; c == (entryCounts{}) {
		delete(s.counts, id)
	}
}

func (s *status) rows(txn statedb.ReadTxn, id tables.PolicyID) []*tables.NetworkPolicyStatus {
	p, revision, found := s.Policies.Get(txn, tables.NetworkPolicyByID(id))
	if !found {
		return nil
	}
	c := s.counts[id]
	row := &tables.NetworkPolicyStatus{
		Policy: id, Errors: texts(p.Errors), Unsupported: texts(p.Unsupported), Generation: p.Generation, Wanted: revision,
		EntriesWanted: c.wanted, Programmed: c.programmed, Failed: c.failed,
	}
	here, outside, refused := s.inForce(txn, p, row)
	row.Settled = row.InForce == row.Wanted && c.programmed == c.wanted && outside == 0 && !s.unsettled.waits(id)
	row.Written = c.failed > 0 || !s.unsettled.waits(id)
	s.times(txn, row)
	switch {
	case len(row.Errors) > 0:
		row.State = tables.PolicyInvalid
	case len(row.Unsupported) > 0:
		row.State = tables.PolicyUnsupported
	case row.Failed > 0 || refused > 0:
		row.State = tables.PolicyFailed
	case !row.Settled:
		row.State = tables.PolicyPending
	case !here:
		row.State = tables.PolicyNotHere
	default:
		row.State = tables.PolicyInForce
	}
	return []*tables.NetworkPolicyStatus{row}
}

// inForce fills in which revision of a policy is in force, and reports whether it
// chooses somebody on this node, and of how many of these the kernel does not know
// it, or refused to.
func (s *status) inForce(txn statedb.ReadTxn, p *tables.NetworkPolicy, row *tables.NetworkPolicyStatus) (here bool, outside, refused int) {
	var last tables.SelectorID
	enforced, _, found := s.Rules.Get(txn, tables.EnforcedPolicyByID(row.Policy))
	if !found {
		enforced = &tables.EnforcedPolicy{}
	}
	if len(enforced.Rules) > 0 {
		row.InForce = enforced.Revision
	} else if saysNothing(p) {
		row.InForce = row.Wanted // there is nothing to wait for
	}
	for _, r := range enforced.Rules {
		if r.Subject == last {
			continue
		}
		last = r.Subject
		if _, _, found := s.Members.Get(txn, tables.ClassRowsBySelector(r.Subject)); found {
			here = true
			o, n := s.pods(txn, r.Subject)
			outside, refused = outside+o, refused+n
		}
	}
	return here, outside, refused
}

// times fills in since when the revision is wanted, and since when it is settled.
func (s *status) times(txn statedb.ReadTxn, row *tables.NetworkPolicyStatus) {
	former, _, found := s.Output.Get(txn, tables.NetworkPolicyStatusByPolicy(row.Policy))
	if found && former.Wanted == row.Wanted {
		row.Since, row.Done = former.Since, former.Done
	} else {
		row.Since = time.Now()
	}
	if row.Settled && row.Done.IsZero() {
		row.Done = time.Now()
	}
}

func texts(errors []tables.FieldError) []string {
	var list []string
	for _, e := range errors {
		list = append(list, e.Error())
	}
	slices.Sort(list)
	return list
}
