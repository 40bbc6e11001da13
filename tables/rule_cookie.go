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
	return c.Cookie == o.Cookie && slices.Equal(c.Rules, o.Rules)
}

// TableHeader implements [statedb.TableWritable].
func (*RuleCookie) TableHeader() []string { return []string{"Cookie", "Rules"} }

// TableRow implements [statedb.TableWritable].
func (c *RuleCookie) TableRow() []string {
	return []string{strconv.FormatUint(uint64(c.Cookie), 10), listColumn(RuleNames(c.Rules), ", ")}
}

var (
	ruleCookieIndex = UniqueIndex("cookie", Uint32Keys,
		func(c *RuleCookie) uint32 { return c.Cookie })

	// RuleCookieByNumber queries the rules of a cookie.
	RuleCookieByNumber = ruleCookieIndex.Query
)

// NewRuleCookieTable creates the table of cookies.
var NewRuleCookieTable = Declare("rule-cookies", ruleCookieIndex)
