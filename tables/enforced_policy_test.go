// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// A policy is found by each selector that it names and by no other, however many
// these are, and while they become more and fewer.
func TestEnforcedPoliciesBySelector(t *testing.T) {
	db := statedb.New()
	policies, err := NewEnforcedPolicyTable(db)
	require.NoError(t, err)
	// Several are of one group.
	selector := func(i int) SelectorID { return SelectorID(i%700)<<54 | SelectorID(i+1) }
	const all = 1500
	policy := func(name string, inForce, retired int) *EnforcedPolicy {
		rule := func(from, to int) []*EnforcedRule {
			r := &EnforcedRule{Subject: selector(from)}
			for i := from; i < to; i++ {
				r.Peers = append(r.Peers, selector(i))
			}
			slices.Sort(r.Peers)
			return []*EnforcedRule{r}
		}
		return &EnforcedPolicy{Policy: PolicyID{Name: Name{Name: name}}, Rules: rule(0, inForce), Retired: rule(inForce, inForce+retired)}
	}
	for _, n := range []int{1, manySelectors - 1, manySelectors, manySelectors + 1, all - 1, manySelectors, 3} {
		wtxn := db.WriteTxn(policies)
		for _, p := range []*EnforcedPolicy{policy("many", n-1, 1), policy("few", 10, 5)} {
			_, _, err := policies.Insert(wtxn, p)
			require.NoError(t, err)
		}
		txn := wtxn.Commit()
		for i := range all {
			var names []string
			for p := range EnforcedPoliciesBySelector(txn, policies, selector(i)) {
				names = append(names, p.Policy.Name.Name)
			}
			var want []string
			if i < 15 {
				want = append(want, "few")
			}
			if i < n {
				want = append(want, "many")
			}
			require.ElementsMatch(t, want, names, "selector %d of %d", i, n)
		}
	}
}
