// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
)

// RuleCookie has the rules that a cookie in entries, events and counters stands for.
type RuleCookie struct {
	Cookie uint32   `json:"cookie"`
	Rules  []RuleID `json:"rules"`
	Fields []string `json:"fields"` // of the objects, one for each of Rules
}

// CookieOf returns the cookie of the rules that decide together, in order; 0 for
// none. It is a digest, so that it is the same everywhere and after a restart,
// and is worth as much as 32 bits are: two sets of rules that share one are
// counted together, and both are named by the row.
func CookieOf(rules []RuleID) uint32 {
	if len(rules) == 0 {
		return 0
	}
	h := sha256.New()
	for _, id := range rules {
		h.Write(id.digested())
	}
	return max(1, binary.BigEndian.Uint32(h.Sum(nil)))
}

// Equal reports whether two rows say the same.
func (c *RuleCookie) Equal(o *RuleCookie) bool {
	return c.Cookie == o.Cookie && slices.Equal(c.Rules, o.Rules) && slices.Equal(c.Fields, o.Fields)
}

// Field returns where in its object a rule is, empty if it is none of the cookie.
func (c *RuleCookie) Field(id RuleID) string {
	if at := slices.Index(c.Rules, id); at >= 0 {
		return c.Fields[at]
	}
	return ""
}

// TableHeader implements [statedb.TableWritable].
func (*RuleCookie) TableHeader() []string { return []string{"Cookie", "Rules"} }

// TableRow implements [statedb.TableWritable].
func (c *RuleCookie) TableRow() []string {
	rules := make([]string, len(c.Rules))
	for i, id := range c.Rules {
		rules[i] = id.Policy.String() + " " + c.Fields[i]
	}
	return []string{strconv.FormatUint(uint64(c.Cookie), 10), listColumn(rules, ", ")}
}

var (
	ruleCookieIndex = UniqueIndex("cookie", Uint32Keys,
		func(c *RuleCookie) uint32 { return c.Cookie })

	ruleCookiePolicyIndex = IndexEach("policy", PolicyKeys,
		func(c *RuleCookie) (policies []PolicyID) {
			for i, id := range c.Rules { // which are in order of policy
				if i == 0 || id.Policy != c.Rules[i-1].Policy {
					policies = append(policies, id.Policy)
				}
			}
			return policies
		})

	// RuleCookieByNumber queries the rules of a cookie.
	RuleCookieByNumber = ruleCookieIndex.Query

	// RuleCookiesByPolicy queries the cookies of rules of a policy, alone or with others.
	RuleCookiesByPolicy = ruleCookiePolicyIndex.Query
)

// NewRuleCookieTable creates the table of cookies.
var NewRuleCookieTable = Declare("rule-cookies", ruleCookieIndex, ruleCookiePolicyIndex)
