// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"github.com/sluice-net/sluice/tables"
)

// manyRules are so many rules that rulesets share them.
const manyRules = 100

// share replaces the rules of a new ruleset by those of others that are the same. A policy may have
// very many, which are the same for most label sets that it selects.
func (c *round) share(r *tables.Ruleset) {
	if len(r.Rules) < manyRules {
		return
	}
	for i, rule := range r.Rules {
		known := c.known(rule.Policy)
		if same := known[rule.RuleID]; same != nil && same.Equal(rule) {
			r.Rules[i] = same
		} else {
			known[rule.RuleID] = rule
		}
	}
}

// known returns the rules of a policy in the last ruleset with it, and in those of this round.
func (c *round) known(id tables.PolicyID) map[tables.RuleID]*tables.Rule {
	if known := c.rules[id]; known != nil {
		return known
	}
	var last *tables.Ruleset
	for r := range c.Rulesets.List(c.out, tables.RulesetsByPolicy(id)) {
		if r.TooLarge == "" && (last == nil || r.Number > last.Number) {
			last = r
		}
	}
	known := map[tables.RuleID]*tables.Rule{}
	if last != nil {
		for _, rule := range last.Rules {
			if rule.Policy == id {
				known[rule.RuleID] = rule
			}
		}
	}
	c.rules[id] = known
	return known
}
