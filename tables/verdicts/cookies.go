// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"slices"

	"github.com/sluice-net/sluice/bpf"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type cookieParams struct {
	cell.In

	Verdicts statedb.Table[*tables.Verdict]
	Kernel   statedb.Table[*tables.VerdictMirror]

	Output statedb.RWTable[*tables.RuleCookie]
}

// deriveCookies keeps what cookies stand for while a verdict is desired that has them, and
// then until the kernel has none: the reconciler deletes verdicts after a grace period.
func deriveCookies(p derive.Params, c cookieParams) error {
	return derive.Register(p, c.declare())
}

func (c cookieParams) declare() derive.Rule[uint32] {
	return derive.Rule[uint32]{
		Name:    "rule-cookies",
		Outputs: []statedb.TableMeta{c.Output},
		Inputs: []derive.Input[uint32]{
			derive.FromChange(c.Verdicts, markCookie),
			derive.Feedback(derive.FromChange(c.Kernel, markDeleted)),
		},
		Compute: c.compute,
	}
}

// markCookie marks cookies of verdicts that are inserted or deleted. The cookie of a verdict does
// not change.
func markCookie(_ statedb.ReadTxn, old, new *tables.Verdict, mark func(uint32)) {
	switch {
	case old == nil && new.Value.Cookie != 0:
		mark(new.Value.Cookie)
	case new == nil && old.Value.Cookie != 0:
		mark(old.Value.Cookie)
	}
}

// markDeleted marks the cookie of a verdict that the kernel no longer has.
func markDeleted(_ statedb.ReadTxn, old, new *tables.VerdictMirror, mark func(uint32)) {
	if old == nil {
		return
	}
	for _, v := range old.Values() {
		if new == nil || !slices.Contains(new.Values(), v) {
			mark(v.Cookie)
		}
	}
}

func (c cookieParams) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, cookies []uint32, _ func(uint32),
) error {
	for _, cookie := range cookies {
		if err := c.update(in, out, cookie); err != nil {
			return err
		}
	}
	return nil
}

func (c cookieParams) update(in statedb.ReadTxn, out statedb.WriteTxn, cookie uint32) error {
	former, _, known := c.Output.Get(out, tables.RuleCookieByNumber(cookie))
	row := &tables.RuleCookie{Cookie: cookie}
	for v := range c.Verdicts.List(in, tables.VerdictsByCookie(cookie)) {
		if len(row.Rules) == 0 || sameRules(row.Rules, v.Rules) {
			row.Rules = v.Rules // later ones have the present fields
			continue
		}
		// Digests collide.
		row.Rules = slices.Concat(row.Rules, v.Rules)
		slices.SortFunc(row.Rules, tables.RuleID.Compare)
		row.Rules = slices.Compact(row.Rules)
	}
	if len(row.Rules) == 0 {
		inKernel := tables.MirrorsTo[bpf.VerdictKey, bpf.VerdictValue](cookie)
		if _, _, found := c.Kernel.Get(in, inKernel); known && !found {
			return derive.Delete(out, c.Output, former)
		}
		return nil
	}
	if known && former.Equal(row) {
		return nil
	}
	return derive.Insert(out, c.Output, row)
}

// sameRules reports whether two lists have the same rules, wherever these are in their objects.
func sameRules(a, b []tables.RuleID) bool {
	return slices.EqualFunc(a, b, func(x, y tables.RuleID) bool {
		x.Field = y.Field
		return x == y
	})
}
