// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// rulesOf returns the rules of a desired verdict. Its cookie, which has their positions in their
// objects, gets a row a moment later.
func (e *Explainer) rulesOf(txn statedb.ReadTxn, v *tables.Verdict) []Rule {
	rules := make([]Rule, 0, len(v.Rules))
	cookie, _, known := e.t.Cookies.Get(txn, tables.RuleCookieByNumber(v.Value.Cookie))
	for _, id := range v.Rules {
		rule := Rule{Policy: id.Policy.String(), Verdict: verdictOf(v.Value)}
		if known {
			rule.Field = cookie.Field(id)
		} else {
			rule.Field = tables.RuleField(txn, e.t.Rulesets, id)
		}
		rules = append(rules, rule)
	}
	return rules
}

// rulesOfCookie returns the rules of an entry of the kernel.
func (e *Explainer) rulesOfCookie(txn statedb.ReadTxn, v bpf.VerdictValue) []Rule {
	if v.Cookie == 0 {
		return []Rule{}
	}
	row, _, ok := e.t.Cookies.Get(txn, tables.RuleCookieByNumber(v.Cookie))
	if !ok {
		return []Rule{{Policy: "unknown", Field: "cookie " + utoa(v.Cookie), Verdict: verdictOf(v)}}
	}
	rules := make([]Rule, 0, len(row.Rules))
	for i, id := range row.Rules {
		rules = append(rules, Rule{
			Policy: id.Policy.String(), Field: row.Fields[i], Verdict: verdictOf(v),
		})
	}
	return rules
}

func verdictOf(v bpf.VerdictValue) string {
	switch {
	case v.Deny == 0:
		return "allow"
	case v.Default != 0:
		return "default deny"
	}
	return "deny"
}
