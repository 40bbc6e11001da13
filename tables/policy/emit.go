// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// contribution is what one rule says of the traffic under a key.
type contribution struct {
	precedence uint32
	deny       bool
	rule       tables.RuleID
	anonymous  bool // of no rule: a default that allows
}

// contributions are those of a pair, by key.
type contributions map[bpf.PolicyKey][]contribution

// add has a rule contribute to a key.
func (c contributions) add(key bpf.PolicyKey, r *tables.EnforcedRule) {
	add := contribution{precedence: bpf.PrecedenceAllow, rule: r.RuleID}
	if r.Deny {
		add.precedence, add.deny = bpf.PrecedenceDeny, true
	}
	c[key] = append(c[key], add)
}

// entries returns the fewest entries by which the longest key that covers some
// traffic says what the contribution of the highest precedence that covers it
// does, in order of key. The result depends on no order of contributions.
func (c contributions) entries() []*tables.PolicyEntry {
	if len(c) <= 1 {
		for key, by := range c {
			e := &tables.PolicyEntry{Key: key, Reconciled: tables.Pending()}
			decide(e, by)
			return []*tables.PolicyEntry{named(e)}
		}
		return nil
	}
	keys := slices.SortedFunc(maps.Keys(c), compareKeys)
	emitted := make(map[bpf.PolicyKey]*tables.PolicyEntry, len(keys))
	entries := make([]*tables.PolicyEntry, 0, len(keys))
	for _, key := range keys { // shorter ones come first
		e := c.decide(key)
		if covering := nearest(emitted, key); covering != nil && covering.Value == e.Value && slices.Equal(covering.Rules, e.Rules) {
			continue
		}
		emitted[key] = e
		entries = append(entries, e)
	}
	return entries
}

// decide returns the entry of a key, whether or not it is needed.
func (c contributions) decide(key bpf.PolicyKey) *tables.PolicyEntry {
	e := &tables.PolicyEntry{Key: key, Reconciled: tables.Pending()}
	for cover := range Covering(key) {
		decide(e, c[cover])
	}
	return named(e)
}

// decide has contributions that cover the key of an entry take part in it.
func decide(e *tables.PolicyEntry, contributions []contribution) {
	for _, by := range contributions {
		if by.precedence > e.Value.Precedence {
			e.Value.Precedence, e.Rules = by.precedence, nil
		}
		if by.precedence < e.Value.Precedence {
			continue
		}
		if e.Value.Deny = 0; by.deny {
			e.Value.Deny = 1
		}
		if !by.anonymous {
			e.Rules = append(e.Rules, by.rule)
		}
	}
}

// named returns an entry with its rules in order, and their cookie.
func named(e *tables.PolicyEntry) *tables.PolicyEntry {
	slices.SortFunc(e.Rules, tables.RuleID.Compare)
	e.Rules = slices.Compact(e.Rules)
	e.Value.Cookie = tables.CookieOf(e.Rules)
	return e
}

// nearest returns the entry of the longest key that covers another, but itself.
func nearest(emitted map[bpf.PolicyKey]*tables.PolicyEntry, key bpf.PolicyKey) *tables.PolicyEntry {
	if len(emitted) == 0 {
		return nil
	}
	for cover := range Covering(key) {
		if e := emitted[cover]; e != nil && cover != key {
			return e
		}
	}
	return nil
}

// compareKeys orders the keys of a pair as the table does.
func compareKeys(a, b bpf.PolicyKey) int {
	return cmp.Or(cmp.Compare(a.PrefixLen, b.PrefixLen), cmp.Compare(a.Protocol, b.Protocol), slices.Compare(a.Port[:], b.Port[:]))
}
