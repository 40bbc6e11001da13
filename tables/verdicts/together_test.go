// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Of many rules that decide together few are named: else a policy of 200 KB, with half of its
// entries for all ports and half for one port each, would take gigabytes.
func TestManyRulesDecideTogether(t *testing.T) {
	const n = 1000
	w := newWorld(t)
	deny := ruleAt("p", bpf.DirectionIngress, -1)
	deny.DefaultDeny = true
	rules := []*tables.Rule{deny}
	one := ruleAt("p", bpf.DirectionIngress, 0)
	one.AnyPeer = true
	for i := range uint16(n) {
		all := ruleAt("p", bpf.DirectionIngress, int(i)+1)
		all.AnyPeer = true
		rules = append(rules, all)
		one.Ports = append(one.Ports, tcp(2*i+1, 2*i+1))
	}
	w.put(class(1, []uint32{1}), ruleset(2, append(rules, one)...))
	w.work()
	named := 0
	for v := range w.rule.Verdicts.All(w.db.ReadTxn()) {
		require.LessOrEqual(t, len(v.Rules), maxNamedRules)
		named += len(v.Rules)
	}
	require.Less(t, named, 20*n)
	for port := range uint16(3) {
		a, found := w.desired().Lookup(Question{2, 1, bpf.DirectionIngress, 6, port})
		require.True(t, found)
		require.Zero(t, a.Verdict.Deny)
	}
}
