// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"crypto/sha256"
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/verdicts"
)

// asOneClass counts each selector as one class, and each port name as one number: the size that
// depends on the policies' own text. How many label sets a selector selects is not in the control
// of the policy's author.
var asOneClass = verdicts.Counts{
	Selector: func(uint32) int { return 1 },
	Port:     func(string) int { return 1 },
}

// entriesOf returns how many map entries some rules need.
func entriesOf(rules []said) int {
	sized := make([]*tables.Rule, len(rules))
	for i, r := range rules {
		rule := *r.Rule
		rule.Peers = make([]uint32, len(r.selectors)) // selectors have no numbers yet
		sized[i] = &rule
	}
	pairs, entries := verdicts.Size(sized, asOneClass)
	for _, r := range rules {
		entries += r.entries
	}
	return pairs + entries
}

// tooLarge says why some rules are not enforced, empty if they are.
func (r *rule) tooLarge(rules []said) string {
	entries := entriesOf(rules)
	if entries <= int(r.MaxEntries) {
		return ""
	}
	biggest, most := 0, 0
	for i := range rules {
		if n := entriesOf(rules[i : i+1]); n > most {
			biggest, most = i, n
		}
	}
	return fmt.Sprintf(
		"at least %d entries, more than --max-ruleset-entries=%d; the biggest rule read is %s %s with %d",
		entries, r.MaxEntries, rules[biggest].Policy, rules[biggest].Field, most,
	)
}

// neededBefore returns what a ruleset needed when it was refused, zero if it was not.
func (c *round) neededBefore(r *tables.Ruleset) (needs tables.RulesetSize) {
	isolating, _, found := c.Rulesets.Get(c.out, tables.RulesetByDigest(isolationDigest(r.Digest)))
	if found {
		needs = isolating.Needs
	}
	return needs
}

// sizes are what rulesets use of the maps, or will when those are tried again that were refused.
type sizes struct {
	total tables.RulesetSize
	of    map[string]tables.RulesetSize // of a namespace
}

func (s *sizes) add(namespace string, entries, verdicts int) {
	s.total.Entries += entries
	s.total.Verdicts += verdicts
	of := s.of[namespace]
	of.Entries += entries
	of.Verdicts += verdicts
	s.of[namespace] = of
}

// allSizes returns the sizes of all rulesets.
func (c *round) allSizes() *sizes {
	if c.sizes != nil {
		return c.sizes
	}
	c.sizes = &sizes{of: map[string]tables.RulesetSize{}}
	for row := range c.Usage.All(c.in) {
		c.sizes.add(row.Namespace, row.Entries, row.Verdicts)
	}
	for r := range c.Rulesets.All(c.out) {
		if r.TooLarge == "" && !refersTo(c.in, c.SubjectMirrors, r.Number) { // else it is used
			c.sizes.add(r.Namespace(), r.Needs.Entries, r.Needs.Verdicts)
		}
	}
	return c.sizes
}

// hasRoom reports whether the maps have room for what a ruleset needed when it was refused, beside
// what others use, or will when they are tried again.
func (c *round) hasRoom(r *tables.Ruleset) bool {
	all := c.allSizes()
	return c.Maps.CanRetry(r.Needs, all.total, all.of[r.Namespace()])
}

// isolateRefused isolates all subjects that have a ruleset that is refused, or that the kernel has
// in it: classes wait until the kernel has none. So this waits for no class: a subject that is to
// enter another ruleset does that later.
func (c *round) isolateRefused(number uint32) error {
	for _, s := range statedb.Collect(c.Subjects.List(c.out, tables.SubjectsByRuleset(number))) {
		if err := c.isolateSubject(s.Number, number); err != nil {
			return err
		}
	}
	for m := range c.SubjectMirrors.List(c.in, mirrorsToRuleset(number)) {
		if err := c.isolateSubject(m.Key.Subject, number); err != nil {
			return err
		}
	}
	return nil
}

func (c *round) isolateSubject(subject, ruleset uint32) error {
	s, _, found := c.Subjects.Get(c.out, tables.SubjectByNumber(subject))
	r, _, exists := c.Rulesets.Get(c.out, tables.RulesetByNumber(ruleset))
	refusal, _, refused := c.Refusals.Get(c.in, tables.RefusalOfRuleset(ruleset))
	if !found || !exists || !refused {
		return nil
	}
	isolating, err := c.isolate(r, "", refusal.Needs)
	if err != nil || s.Ruleset == isolating {
		return err
	}
	changed := tables.WithStatus(s, reconciler.StatusPending())
	changed.Ruleset = isolating
	if err := derive.Insert(c.out, c.Subjects, changed); err != nil {
		return err
	}
	return c.releaseRuleset(s.Ruleset)
}

// refusedInKernel returns the refused ruleset that the kernel has a subject in, nil if there is
// none.
func (c *round) refusedInKernel(
	s *tables.Subject,
) (refused *tables.Ruleset, needs tables.RulesetSize) {
	if s == nil {
		return nil, needs
	}
	key := tables.MirrorByKey[bpf.SubjectKey, bpf.SubjectValue](s.MapKey())
	m, _, found := c.SubjectMirrors.Get(c.in, key)
	if !found {
		return nil, needs
	}
	for _, v := range m.Values() {
		refusal, _, is := c.Refusals.Get(c.in, tables.RefusalOfRuleset(v.Ruleset))
		r, _, exists := c.Rulesets.Get(c.out, tables.RulesetByNumber(v.Ruleset))
		if is && exists {
			return r, refusal.Needs
		}
	}
	return nil, needs
}

func mirrorsToRuleset(number uint32) statedb.Query[*tables.SubjectMirror] {
	return tables.MirrorsTo[bpf.SubjectKey, bpf.SubjectValue](number)
}

// isolate returns the number of the ruleset that denies everything in the directions that another
// is about: as that is too large, or as the maps have no room for what it needs.
func (c *round) isolate(
	of *tables.Ruleset, tooLarge string, needs tables.RulesetSize,
) (number uint32, err error) {
	if needs != (tables.RulesetSize{}) {
		tooLarge = fmt.Sprintf("it needs %d entries of sluice_policy and %d of sluice_verdicts, "+
			"or more, and there is no room for it: see policy-usage", needs.Entries, needs.Verdicts)
	}
	r := &tables.Ruleset{
		Digest: isolationDigest(of.Digest), AlwaysDeny: of.AlwaysDeny, Policies: of.Policies,
		Rules: isolation(of.Rules), TooLarge: tooLarge, Needs: needs,
	}
	existing, _, found := c.Rulesets.Get(c.out, tables.RulesetByDigest(r.Digest))
	switch {
	case !found:
		r.Number = c.number()
	case !existing.Undesired && existing.Needs == needs:
		return existing.Number, nil
	default:
		r.Number = existing.Number
	}
	return r.Number, derive.Insert(c.out, c.Rulesets, r)
}

// isolationDigest identifies the ruleset that isolates the pods of another.
func isolationDigest(of bpf.Digest) bpf.Digest {
	sum := sha256.Sum256(append([]byte("isolation of "), of[:]...))
	return bpf.Digest(sum[:16])
}

// isolation returns the rules that deny everything in the directions that others are about.
func isolation(rules []*tables.Rule) (isolating []*tables.Rule) {
	for _, d := range directions {
		for _, r := range rules {
			if r.Direction != d {
				continue
			}
			id := r.RuleID
			id.Item = -1
			isolating = append(isolating, &tables.Rule{RuleID: id, DefaultDeny: true})
			break
		}
	}
	return isolating
}

// markRefusal has the pods of a ruleset isolated that is refused.
func markRefusal(_ statedb.ReadTxn, row *tables.RulesetRefusal, mark func(key)) {
	mark(key{kind: ofRefusal, number: row.Ruleset})
}

// markUsage has refused rulesets tried again when a namespace uses less of the maps.
func markUsage(_ statedb.ReadTxn, old, new *tables.PolicyUsage, mark func(key)) {
	if old != nil && (new == nil || new.Entries < old.Entries || new.Verdicts < old.Verdicts) {
		mark(key{kind: ofRetry})
	}
}

// markIsolated marks the pods of rulesets that are too large, as there may be room for these
// now.
func (r *rule) markIsolated(txn statedb.ReadTxn, mark func(key)) {
	for ruleset := range r.Rulesets.List(txn, tables.RulesetsTooLarge(true)) {
		r.markRuleset(txn, ruleset, mark)
	}
}

// markRuleset marks the pods of a ruleset.
func (r *rule) markRuleset(txn statedb.ReadTxn, ruleset *tables.Ruleset, mark func(key)) {
	for s := range r.Subjects.List(txn, tables.SubjectsByRuleset(ruleset.Number)) {
		for p := range r.Pods.List(txn, tables.PodsBySubject(s.Number)) {
			mark(addrKey(p.Addr))
		}
	}
}

// retry marks the pods of refused rulesets for which the maps have room now.
func (c *round) retry() {
	for r := range c.Rulesets.List(c.out, tables.RulesetsTooLarge(true)) {
		if r.Needs != (tables.RulesetSize{}) && c.hasRoom(r) {
			c.markRuleset(c.out, r, c.mark)
		}
	}
}
