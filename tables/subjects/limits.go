// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"

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
		for _, s := range r.selectors {
			for _, peer := range s.Peers {
				entries++
				if peer.PeerPrefixes != nil {
					entries += len(peer.Except)
				}
			}
		}
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
		"%d entries, more than --max-ruleset-entries=%d; the biggest rule is %s %s with %d",
		entries,
		r.MaxEntries,
		rules[biggest].Policy,
		rules[biggest].Field,
		most,
	)
}

// Room is how many prefixes there is room for: each may be a member.
type Room int

func roomOf(c bpf.Config) Room { return Room(c.MapSizePeers) }

// noRoom says why some rules of a namespace are not enforced though they are not too large,
// empty if they are: they name prefixes that no ruleset in use does, or something that has outgrown
// the room, and there is no room for these.
func (c *round) noRoom(namespace string, rules []said) (string, error) {
	more := map[bpf.Digest]int{}
	for _, r := range rules {
		for _, spec := range r.selectors {
			if kind := spec.Peers[0].Kind; kind == tables.PeerPods || kind == tables.PeerNodes {
				continue
			}
			digest := spec.Digest()
			s, _, inUse := c.Selectors.Get(c.out, tables.SelectorByDigest(digest))
			if inUse && s.NoRoom != "" {
				return s.NoRoom, nil
			}
			if inUse {
				continue
			}
			s, err := c.resolve(c.in, tables.Selector{SelectorSpec: spec})
			if err != nil {
				return "", err
			}
			more[digest] = len(s.Prefixes())
		}
	}
	sum := 0
	for _, n := range more {
		sum += n
	}
	return c.noRoomFor(namespace, sum), nil
}

// noRoomFor says why more prefixes of a namespace do not fit beside those in use, empty if they do.
func (c *round) noRoomFor(namespace string, more int) string {
	if more <= 0 {
		return ""
	}
	total, own := 0, 0
	for s := range c.Selectors.All(c.out) {
		n := len(s.Prefixes())
		total += n
		if s.Namespace == namespace {
			own += n
		}
	}
	if verdicts.Fits(int(c.Room), total, own, more) {
		return ""
	}
	of := "of namespace " + namespace
	if namespace == "" {
		of = "of cluster-wide policies"
	}
	return fmt.Sprintf("%d more prefixes, beside %d %s and %d of others: "+
		"more than --map-size-peers=%d has room for", more, own, of, total-own, c.Room)
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

// isolation returns the rules that deny everything in the directions that others are about.
func isolation(rules []said) (isolating []said) {
	for _, d := range directions {
		for _, r := range rules {
			if r.Direction != d {
				continue
			}
			id := r.RuleID
			id.Item = -1
			isolating = append(isolating,
				said{Rule: &tables.Rule{RuleID: id, Field: r.Field, DefaultDeny: true}})
			break
		}
	}
	return isolating
}
