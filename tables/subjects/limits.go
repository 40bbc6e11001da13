// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"

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

// isolation returns rules that deny everything in the directions of other rules.
func isolation(rules []said) (isolating []said) {
	for _, d := range directions {
		for _, r := range rules {
			if r.Direction != d {
				continue
			}
			id := r.RuleID
			id.Item = -1
			isolating = append(
				isolating,
				said{Rule: &tables.Rule{RuleID: id, Field: r.Field, DefaultDeny: true}},
			)
			break
		}
	}
	return isolating
}
