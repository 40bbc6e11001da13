// SPDX-License-Identifier: Apache-2.0

package events

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// maxNames bounds the cookies whose rules are remembered.
const maxNames = 4096

// names returns the rules of network policies that an event's cookie stands for.
// They are remembered, as rules may be gone when their last packets are reported.
func (e *enricher) names(txn statedb.ReadTxn, raw *bpf.Event) []string {
	if raw.Cookie == 0 {
		return nil
	}
	names := e.lookUpNames(txn, raw)
	if names == nil {
		return e.named[raw.Cookie]
	}
	if len(e.named) >= maxNames {
		clear(e.named)
	}
	e.named[raw.Cookie] = names
	return names
}

func (e *enricher) lookUpNames(txn statedb.ReadTxn, raw *bpf.Event) []string {
	if row, _, found := e.Cookies.Get(txn, tables.RuleCookieByNumber(raw.Cookie)); found {
		return tables.RuleNames(row.Rules)
	}
	if names := e.named[raw.Cookie]; names != nil {
		return names
	}
	// The kernel may decide by a verdict before its cookie has a row, but not before it has
	// one itself.
	verdict, _, found := e.Verdicts.Get(txn, tables.VerdictsByCookie(raw.Cookie))
	if !found {
		return nil
	}
	return tables.RuleNames(verdict.Rules)
}

// remember notes the rules of an event that is reported later.
func (e *enricher) remember(raw *bpf.Event) {
	if raw.Cookie == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.named[raw.Cookie] == nil {
		e.names(e.DB.ReadTxn(), raw)
	}
}
