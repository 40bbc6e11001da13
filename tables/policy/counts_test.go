// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// The work is that of the pairs that a change concerns, among many.
func TestCounts(t *testing.T) {
	const many = 40
	a := newAgent(t, nil)
	rows := evaluated(bpf.RoleSubject, subjectOf("all"), subjectOf("one"), subjectOf("nobody"))
	for i := range uint32(many) {
		rows = append(rows, subjectRow(i+1, "all", fmt.Sprint("s", i)), peerRow(i+1, "cluster", fmt.Sprint("p", i)))
		rows = append(rows, evaluated(bpf.RolePeer, peerOf(fmt.Sprint("p", i)))...)
	}
	rows = append(rows, evaluated(bpf.RolePeer, peerOf("cluster"))...)
	a.put(append(rows, subjectRow(many+1, "all", "one"), ingressPolicy("everywhere", "all", allow("cluster")))...)
	a.program()

	total := map[string]derive.Counts{}
	cost := func(what string, want map[string]derive.Counts, f func()) {
		t.Helper()
		for _, s := range a.Metrics.All() {
			total[s.Table()] = s.Counts()
		}
		f()
		for table, c := range want {
			now, was := a.counts(table), total[table]
			got := derive.Counts{
				Keys: now.Keys - was.Keys, Rows: now.Rows - was.Rows, Inserted: now.Inserted - was.Inserted, Deleted: now.Deleted - was.Deleted,
			}
			if c.Keys < 0 { // depends on how often it is looked at
				c.Keys, c.Rows = got.Keys, got.Rows
			}
			require.Equal(t, c, got, "%s: %s", what, table)
		}
	}
	nothing := map[string]derive.Counts{"policy-rules": {}, "policy-entries": {}, "rule-cookies": {}, "policy-readiness": {}, "network-policy-status": {}}

	cost("a pod whose labels are known", nothing, func() {
		a.put(&tables.ClassMember{Role: bpf.RolePeer, LabelSet: tables.LabelSetID{1}, Class: 1, Selectors: peerRow(1, "cluster", "p0").Selectors})
	})
	one := ingressPolicy("one", "one", allow("p1", "p2"), tables.PolicyTraffic{AnyPeer: true, Ports: []tables.PolicyPort{{Protocol: 6, First: 80, Last: 80}}})
	cost("a policy of one subject", map[string]derive.Counts{
		"policy-rules": {Keys: 1, Rows: 1, Inserted: 1},
		// Of two peers, whose entry names another rule now; and of any peer, whose
		// default does.
		"policy-entries": {Keys: 3, Rows: 4, Inserted: 4},
		// The class of the subject and those of the peers, in one round or in two.
		"policy-readiness": {Keys: -1, Inserted: 3},
	}, func() { a.put(one) })
	a.program()
	cost("a new generation of a policy", map[string]derive.Counts{
		"policy-rules": {Keys: 1, Rows: 1, Inserted: 1}, "policy-entries": {}, "rule-cookies": {}, "policy-readiness": {},
	}, func() {
		p := *one
		p.Generation++
		a.put(&p)
	})
	cost("a policy that chooses nobody here", map[string]derive.Counts{
		"policy-rules": {Keys: 1, Rows: 1, Inserted: 1}, "policy-entries": {}, "rule-cookies": {}, "policy-readiness": {},
	}, func() { a.put(ingressPolicy("nobody", "nobody", allow("p1"))) })
	require.Equal(t, tables.PolicyNotHere, a.status("nobody").State)
	cost("a new class of peers", map[string]derive.Counts{
		"policy-rules": {}, "policy-entries": {Keys: many + 1, Rows: many + 1, Inserted: many + 1}, "rule-cookies": {},
	}, func() { a.put(peerRow(many+1, "cluster", "unseen")) })
	a.program()
	cost("a class of peers gets a selector that no rule names", map[string]derive.Counts{
		"policy-rules": {}, "policy-entries": {}, "policy-readiness": {Keys: 1, Rows: 1, Inserted: 1},
	}, func() { a.put(peerRow(many+1, "cluster", "unseen", "new")) })
	cost("a class of peers gets a selector that a rule names", map[string]derive.Counts{
		"policy-entries": {Keys: 1, Rows: 1, Inserted: 1},
	}, func() { a.put(peerRow(many+1, "cluster", "unseen", "new", "p1")) })
	cost("it ends", map[string]derive.Counts{
		"policy-entries": {Keys: many + 1, Deleted: many + 1},
	}, func() { a.remove(peerRow(many+1, "cluster")) })
}
