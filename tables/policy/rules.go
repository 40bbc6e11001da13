// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type ruleParams struct {
	cell.In

	Output      statedb.RWTable[*tables.EnforcedPolicy]
	Policies    statedb.Table[*tables.NetworkPolicy]
	Selectors   statedb.Table[*tables.Selector]
	Members     statedb.Table[*tables.ClassMember]
	Kernel      statedb.Table[*tables.PolicyMapEntry]
	Entries     statedb.Table[*tables.PolicyEntry]
	Status      statedb.Table[*tables.NetworkPolicyStatus]
	Enforcement tables.Enforcement
}

// rules derives policy-rules. Policies that wait are known, with what for, so that
// what happens to others costs nothing:
//
//   - for a selector to be settled, before a change comes into force;
//   - for pairs of classes to be settled, before a retired rule may go.
type rules struct {
	ruleParams
	pairs    pairs
	computer *Computer

	selector map[tables.PolicyID]tables.SelectorID // one that it waits for
	waiters  map[tables.SelectorID]map[tables.PolicyID]struct{}
	retired  *settlement[tables.RuleID]

	// late is a policy with a selector that is not evaluated yet, for which it is too
	// early for the first round.
	late tables.PolicyID

	leave         map[tables.SelectorID]struct{} // see leaving
	leaveRevision statedb.Revision

	// replaced are pairs that a retired rule of the policy is about and that
	// another rule in its place may say the same of: nothing need change there.
	replaced map[tables.PolicyID][]tables.PolicyPair
}

// deriveRules keeps which rules are in force.
func deriveRules(p derive.Params, params ruleParams) error {
	t := Tables{Members: params.Members, Rules: params.Output, Kernel: params.Kernel, Enforcement: params.Enforcement}
	r := &rules{
		ruleParams: params,
		pairs:      pairs{Tables: t, Entries: params.Entries},
		computer:   NewComputer(t),
		selector:   map[tables.PolicyID]tables.SelectorID{},
		waiters:    map[tables.SelectorID]map[tables.PolicyID]struct{}{},
		retired:    newSettlement[tables.RuleID](),
		replaced:   map[tables.PolicyID][]tables.PolicyPair{},
	}
	_, err := derive.Register(p, derive.Rule[tables.PolicyID, *tables.EnforcedPolicy]{
		Output: r.Output,
		Inputs: []derive.Input[tables.PolicyID]{
			derive.FromKey(r.Policies, func(_ statedb.ReadTxn, p *tables.NetworkPolicy, affect func(tables.PolicyID)) { affect(p.ID()) }),
			derive.Indexed(tables.AnyButPeers, derive.Where(func(m *tables.ClassMember) bool { return !m.IsMember() },
				derive.FromChange(r.Members, r.memberChanged))),
			derive.Feedback(derive.While(r.retiring, derive.FromChange(r.Entries, func(_ statedb.ReadTxn, old, new *tables.PolicyEntry, affect func(tables.PolicyID)) {
				if old == nil || new == nil || !old.Equal(new) {
					r.pairChanged(pairOfEither(old, new), affect)
				}
			}))),
			derive.Feedback(derive.While(r.retiring, derive.FromChange(r.Kernel, func(_ statedb.ReadTxn, old, new *tables.PolicyMapEntry, affect func(tables.PolicyID)) {
				if old == nil || new == nil || old.Value != new.Value {
					r.pairChanged(pairOfEitherInKernel(old, new), affect)
				}
			}))),
			// Its row changes once the rules in force have.
			derive.Feedback(derive.FromChange(r.Status, r.statusChanged)),
		},
		Begin: func() bool { return r.late == tables.PolicyID{} },
		Existing: func(txn statedb.ReadTxn, id tables.PolicyID) iter.Seq2[*tables.EnforcedPolicy, statedb.Revision] {
			return r.Output.List(txn, tables.EnforcedPolicyByID(id))
		},
		Plan: func(txn statedb.ReadTxn, ids []tables.PolicyID) ([]tables.PolicyID, func(tables.PolicyID) []*tables.EnforcedPolicy) {
			if r.isLate(txn) {
				return nil, nil
			}
			r.retired.checkEach(func(pair tables.PolicyPair, rule tables.RuleID) bool { return r.gone(txn, pair, rule) })
			return ids, func(id tables.PolicyID) []*tables.EnforcedPolicy { return r.rows(txn, id) }
		},
		Equal: (*tables.EnforcedPolicy).Equal,
	})
	return err
}

func pairOfEither(old, new *tables.PolicyEntry) tables.PolicyPair {
	if old != nil {
		return old.Pair()
	}
	return new.Pair()
}

func pairOfEitherInKernel(old, new *tables.PolicyMapEntry) tables.PolicyPair {
	if old != nil {
		return tables.PairOf(old.Key)
	}
	return tables.PairOf(new.Key)
}

// memberChanged affects the policies that wait for what has changed.
func (r *rules) memberChanged(_ statedb.ReadTxn, old, new *tables.ClassMember, affect func(tables.PolicyID)) {
	if old != nil && old.OfClass {
		r.retired.touchClass(old, new, func(rule tables.RuleID) { affect(rule.Policy) })
	}
	if len(r.waiters) == 0 {
		return
	}
	if new != nil && new.Evaluated != 0 {
		r.selectorChanged(new.Evaluated, affect)
	}
	if old != nil {
		for _, id := range old.Leaving {
			r.selectorChanged(id, affect)
		}
	}
}

func (r *rules) selectorChanged(id tables.SelectorID, affect func(tables.PolicyID)) {
	for policy := range r.waiters[id] {
		affect(policy)
	}
}

// statusChanged has the pairs looked at that nothing else might call for, and retired
// rules when those in force are written.
func (r *rules) statusChanged(txn statedb.ReadTxn, old, new *tables.NetworkPolicyStatus, affect func(tables.PolicyID)) {
	if new != nil && new.Written && (old == nil || !old.Written || old.InForce != new.InForce) {
		if row, _, found := r.Output.Get(txn, tables.EnforcedPolicyByID(new.Policy)); found && len(row.Retired) > 0 {
			affect(new.Policy)
		}
	}
	if old != nil && new != nil && old.InForce == new.InForce {
		return
	}
	row := new
	if row == nil {
		row = old
	}
	for _, pair := range r.replaced[row.Policy] {
		r.pairChanged(pair, affect)
	}
	delete(r.replaced, row.Policy)
}

// retiring reports whether a retired rule waits for some pair.
func (r *rules) retiring(statedb.ReadTxn) bool { return !r.retired.empty() }

// pairChanged affects the policies with retired rules that wait for a pair.
func (r *rules) pairChanged(pair tables.PolicyPair, affect func(tables.PolicyID)) {
	r.retired.touch(pair, func(rule tables.RuleID) { affect(rule.Policy) })
}

// isLate reports whether the policy is still late that was when the first round was
// last tried: then nothing is computed, as it would be in vain.
func (r *rules) isLate(txn statedb.ReadTxn) bool {
	if r.late == (tables.PolicyID{}) {
		return false
	}
	if p, _, found := r.Policies.Get(txn, tables.NetworkPolicyByID(r.late)); found && r.unevaluated(txn, RulesOf(p)) != 0 {
		return true
	}
	r.late = tables.PolicyID{}
	return false
}

func (r *rules) rows(txn statedb.ReadTxn, id tables.PolicyID) []*tables.EnforcedPolicy {
	if r.late != (tables.PolicyID{}) {
		return nil
	}
	former, _, found := r.Output.Get(txn, tables.EnforcedPolicyByID(id))
	if !found {
		former = &tables.EnforcedPolicy{Policy: id}
	}
	row := r.inForce(txn, former)
	row.Retired = slices.DeleteFunc(slices.Clone(former.Retired), func(old *tables.EnforcedRule) bool { return covered(row, old) })
	for _, old := range former.Rules {
		if !covered(row, old) {
			row.Retired = append(row.Retired, r.retire(txn, old, row.Rule(old.RuleID)))
		}
	}
	row.Retired = slices.DeleteFunc(row.Retired, func(old *tables.EnforcedRule) bool {
		return !r.retired.waits(old.RuleID) && r.isWritten(txn, row)
	})
	slices.SortFunc(row.Retired, compareRules)
	row.Retired = slices.CompactFunc(row.Retired, func(a, b *tables.EnforcedRule) bool { return a.RuleID == b.RuleID })
	if len(row.Rules)+len(row.Retired) == 0 {
		return nil
	}
	return []*tables.EnforcedPolicy{row}
}

func compareRules(a, b *tables.EnforcedRule) int { return a.Compare(b.RuleID) }

// inForce returns the row of a policy with the rules that are to be in force: those
// of what it is now, or those of before while some selector is not settled.
func (r *rules) inForce(txn statedb.ReadTxn, former *tables.EnforcedPolicy) *tables.EnforcedPolicy {
	id := former.Policy
	r.wait(id, 0)
	p, revision, found := r.Policies.Get(txn, tables.NetworkPolicyByID(id))
	if !found {
		return &tables.EnforcedPolicy{Policy: id}
	}
	wanted := &tables.EnforcedPolicy{Policy: id, Revision: revision, Rules: RulesOf(p)}
	// In the first round nothing is in force that could stay: all comes into force, once
	// the classes know all selectors. Those that have to be left for one are of unknown
	// meaning then, and nobody waits for them here.
	if begun, _ := r.Output.Initialized(txn); !begun {
		if r.unevaluated(txn, wanted.Rules) != 0 {
			r.late = id
		}
		return wanted
	}
	unsettled := r.unsettled(txn, wanted.Rules)
	if unsettled == 0 {
		return wanted
	}
	r.wait(id, unsettled)
	return &tables.EnforcedPolicy{Policy: id, Revision: former.Revision, Rules: former.Rules}
}

// wait has a policy wait for a selector, or for none.
func (r *rules) wait(id tables.PolicyID, selector tables.SelectorID) {
	if former, waits := r.selector[id]; waits {
		delete(r.selector, id)
		if delete(r.waiters[former], id); len(r.waiters[former]) == 0 {
			delete(r.waiters, former)
		}
		if len(r.selector) == 0 {
			r.selector = map[tables.PolicyID]tables.SelectorID{} // all have waited at the start
		}
	}
	if selector == 0 {
		return
	}
	r.selector[id] = selector
	if r.waiters[selector] == nil {
		r.waiters[selector] = map[tables.PolicyID]struct{}{}
	}
	r.waiters[selector][id] = struct{}{}
}

// unevaluated returns a selector that the classes are not told apart by yet, 0 if
// there is none.
func (r *rules) unevaluated(txn statedb.ReadTxn, wanted []*tables.EnforcedRule) tables.SelectorID {
	for _, rule := range wanted {
		for role, id := range selectorsOf(rule) {
			if !tables.SelectorIsCurrent(txn, r.Selectors, r.Members, role, id) {
				return id
			}
		}
	}
	return 0
}

// unsettled returns a selector of which the kernel does not yet have all
// addresses in classes that tell whether it chooses them, 0 if there is none.
func (r *rules) unsettled(txn statedb.ReadTxn, wanted []*tables.EnforcedRule) tables.SelectorID {
	leaving := r.leaving(txn)
	for _, rule := range wanted {
		for _, id := range selectorsOf(rule) {
			if _, leave := leaving[id]; leave {
				return id
			}
		}
	}
	return r.unevaluated(txn, wanted)
}

// leaving returns the selectors by which a class that some addresses are in differs
// from the one where they belong: as of the last change of the members.
func (r *rules) leaving(txn statedb.ReadTxn) map[tables.SelectorID]struct{} {
	if revision := r.Members.Revision(txn); r.leave == nil || revision != r.leaveRevision {
		r.leave, r.leaveRevision = map[tables.SelectorID]struct{}{}, revision
		for _, role := range [...]bpf.Role{bpf.RoleSubject, bpf.RolePeer} {
			for m := range r.Members.List(txn, tables.ClassRowsLeaving(role)) {
				for _, id := range m.Leaving {
					r.leave[id] = struct{}{}
				}
			}
		}
	}
	return r.leave
}

// covered reports whether some rule in force covers another one.
func covered(p *tables.EnforcedPolicy, old *tables.EnforcedRule) bool {
	if inPlace := p.Rule(old.RuleID); inPlace != nil && (inPlace == old || covers(inPlace, old)) {
		return true
	}
	return slices.ContainsFunc(p.Rules, func(new *tables.EnforcedRule) bool { return covers(new, old) })
}

// covers reports whether a rule keeps alive, for as long as it is there and when
// it retires, all that another one would.
func covers(new, old *tables.EnforcedRule) bool {
	if new.Subject != old.Subject || new.Direction != old.Direction || (old.AnyPeer || old.DefaultDeny) && !(new.AnyPeer || new.DefaultDeny) {
		return false
	}
	ids := new.Selectors()
	return !slices.ContainsFunc(old.Selectors(), func(id tables.SelectorID) bool {
		_, found := slices.BinarySearch(ids, id)
		return !found
	})
}

// retire returns a rule as a retired one, which waits for the pairs that it is
// about as far as it may still show there. Another rule may have its place: if that
// differs only by its peers, what retires is the rule about the others.
func (r *rules) retire(txn statedb.ReadTxn, old, inPlace *tables.EnforcedRule) *tables.EnforcedRule {
	var kept *tables.EnforcedRule
	if inPlace != nil && old.SameButPeers(inPlace) {
		old, kept = old.Without(inPlace), inPlace
	}
	row := *old
	row.Version = versionOf(old)
	wait := func(pair tables.PolicyPair) {
		r.retired.add(pair, row.RuleID)
		if inPlace != nil {
			r.replaced[old.Policy] = append(r.replaced[old.Policy], pair)
		}
	}
	r.pairs.ofRule(txn, old, func(pair tables.PolicyPair) {
		if r.shows(txn, pair, old.RuleID) || !r.pairs.programmed(txn, pair) {
			wait(pair)
		}
	})
	r.pairs.byEntries(txn, old, kept, wait)
	// Each of these pairs is yet to change, and is looked at when it does.
	r.retired.checked()
	return &row
}

// isWritten reports whether the kernel says what the rules in force do, as far as it
// takes that. With the selectors of retired ones goes what tells some from others, whose
// class they go to: there they are to find the verdicts that they leave.
func (r *rules) isWritten(txn statedb.ReadTxn, row *tables.EnforcedPolicy) bool {
	status, _, found := r.Status.Get(txn, tables.NetworkPolicyStatusByPolicy(row.Policy))
	return len(row.Rules) == 0 || found && status.Written && status.InForce == row.Revision
}

// versionOf tells the retired rules apart that had the same place in a policy.
func versionOf(r *tables.EnforcedRule) uint64 {
	h := sha256.New()
	for _, id := range r.Selectors() {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(id)))
	}
	return max(1, binary.BigEndian.Uint64(h.Sum(nil)))
}

// shows reports whether an entry of a pair is from a rule.
func (r *rules) shows(txn statedb.ReadTxn, pair tables.PolicyPair, rule tables.RuleID) bool {
	for e := range r.Entries.Prefix(txn, tables.PolicyEntriesOfPair(pair)) {
		if slices.Contains(e.Rules, rule) {
			return true
		}
	}
	return false
}

// gone reports whether the kernel has nothing of a pair any more that comes of a
// retired rule. Another rule may have its place now.
func (r *rules) gone(txn statedb.ReadTxn, pair tables.PolicyPair, retired tables.RuleID) bool {
	retired.Version = 0
	return r.pairs.programmed(txn, pair) && (!r.shows(txn, pair, retired) || r.pairs.derived(txn, r.computer, pair))
}
