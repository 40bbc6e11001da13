// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"iter"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type cookieParams struct {
	cell.In

	Output  statedb.RWTable[*tables.RuleCookie]
	Rules   statedb.Table[*tables.EnforcedPolicy]
	Entries statedb.Table[*tables.PolicyEntry]
	Kernel  statedb.Table[*tables.PolicyMapEntry]
}

// cookies derives rule-cookies. It counts the entries of each cookie as they come
// and go, so that one entry does not cost a look at all others.
type cookies struct {
	cookieParams
	wanted map[uint32][]cookieUse
	kernel map[uint32]int // entries that the kernel has
}

// cookieUse is how many entries are wanted with a cookie for some rules: those of
// all entries, but where digests collide.
type cookieUse struct {
	rules   []tables.RuleID
	entries int
}

// deriveCookies keeps what the cookies stand for that are in use.
func deriveCookies(p derive.Params, params cookieParams) error {
	c := &cookies{cookieParams: params, wanted: map[uint32][]cookieUse{}, kernel: map[uint32]int{}}
	_, err := derive.Register(p, derive.Rule[uint32, *tables.RuleCookie]{
		Output: c.Output,
		Inputs: []derive.Input[uint32]{
			derive.FromChange(c.Entries, c.entryChanged),
			derive.FromChange(c.Kernel, c.kernelChanged),
			derive.FromChange(c.Rules, c.policyChanged),
		},
		Existing: func(txn statedb.ReadTxn, cookie uint32) iter.Seq2[*tables.RuleCookie, statedb.Revision] {
			return c.Output.List(txn, tables.RuleCookieByNumber(cookie))
		},
		Rows:  c.rows,
		Equal: (*tables.RuleCookie).Equal,
	})
	return err
}

func (c *cookies) entryChanged(_ statedb.ReadTxn, old, new *tables.PolicyEntry, affect func(uint32)) {
	if old != nil && new != nil && slices.Equal(old.Rules, new.Rules) {
		return
	}
	if old != nil && len(old.Rules) > 0 && c.count(old, -1) {
		affect(old.Value.Cookie)
	}
	if new != nil && len(new.Rules) > 0 && c.count(new, 1) {
		affect(new.Value.Cookie)
	}
}

// count counts an entry n times, and reports whether its rules come into use, or
// are no more.
func (c *cookies) count(e *tables.PolicyEntry, n int) (changed bool) {
	cookie := e.Value.Cookie
	uses := c.wanted[cookie]
	at := slices.IndexFunc(uses, func(u cookieUse) bool { return slices.Equal(u.rules, e.Rules) })
	if at < 0 {
		at, uses, changed = len(uses), append(uses, cookieUse{rules: e.Rules}), true
	}
	if uses[at].entries += n; uses[at].entries == 0 {
		uses, changed = slices.Delete(uses, at, at+1), true
	}
	if c.wanted[cookie] = uses; len(uses) == 0 {
		delete(c.wanted, cookie)
	}
	return changed
}

func (c *cookies) kernelChanged(_ statedb.ReadTxn, old, new *tables.PolicyMapEntry, affect func(uint32)) {
	if old != nil && new != nil && old.Value.Cookie == new.Value.Cookie {
		return
	}
	if old != nil {
		if cookie := old.Value.Cookie; c.kernel[cookie] > 1 {
			c.kernel[cookie]--
		} else {
			delete(c.kernel, cookie)
			affect(cookie)
		}
	}
	if new != nil {
		c.kernel[new.Value.Cookie]++
	}
}

// policyChanged affects the cookies of rules that have moved within their object.
func (c *cookies) policyChanged(txn statedb.ReadTxn, old, new *tables.EnforcedPolicy, affect func(uint32)) {
	for before, now := range tables.ChangedRules(old, new) {
		if before == nil || now == nil || before.Field == now.Field {
			continue
		}
		for e := range c.Entries.List(txn, tables.PolicyEntriesByPolicy(now.Policy)) {
			if slices.Contains(e.Rules, now.RuleID) {
				affect(e.Value.Cookie)
			}
		}
	}
}

func (c *cookies) rows(txn statedb.ReadTxn, cookie uint32) []*tables.RuleCookie {
	former, _, known := c.Output.Get(txn, tables.RuleCookieByNumber(cookie))
	uses := c.wanted[cookie]
	if len(uses) == 0 {
		if !known || c.kernel[cookie] == 0 {
			return nil // an earlier run's cookie says nothing to this one
		}
		return []*tables.RuleCookie{former}
	}
	row := &tables.RuleCookie{Cookie: cookie}
	for _, u := range uses {
		row.Rules = append(row.Rules, u.rules...)
	}
	slices.SortFunc(row.Rules, tables.RuleID.Compare)
	row.Rules = slices.Compact(row.Rules)
	for _, id := range row.Rules {
		row.Fields = append(row.Fields, c.field(txn, id, former))
	}
	return []*tables.RuleCookie{row}
}

// field returns where in its object a rule is, as far as that is still known.
func (c *cookies) field(txn statedb.ReadTxn, id tables.RuleID, former *tables.RuleCookie) string {
	if r := tables.EnforcedRuleByID(txn, c.Rules, id); r != nil {
		return r.Field
	}
	if former != nil {
		if at := slices.Index(former.Rules, id); at >= 0 {
			return former.Fields[at]
		}
	}
	return ""
}
