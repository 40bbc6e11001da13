// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// rulesBy returns the rules that decide by a value.
func rulesBy(ids []tables.RuleID, v bpf.VerdictValue) []Rule {
	rules := make([]Rule, len(ids))
	for i, id := range ids {
		rules[i] = Rule{Policy: id.Policy.String(), Field: id.Field, Verdict: verdictOf(v)}
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
	return rulesBy(row.Rules, v)
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
