// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// deriveSelectors interns the selectors of all policies, by their text.
func deriveSelectors(p derive.Params, selectors statedb.RWTable[*tables.Selector], policies statedb.Table[*tables.EgressPolicy]) error {
	_, err := derive.Register(p, derive.Rule[tables.EgressSelector, *tables.Selector]{
		Output: selectors,
		Inputs: []derive.Input[tables.EgressSelector]{
			derive.From(policies, func(_ statedb.ReadTxn, p *tables.EgressPolicy, affect func(tables.EgressSelector)) {
				for _, s := range p.Selectors {
					affect(s)
				}
			}),
		},
		Existing: func(txn statedb.ReadTxn, s tables.EgressSelector) iter.Seq2[*tables.Selector, statedb.Revision] {
			return selectors.List(txn, tables.SelectorByID(tables.NewSelectorID(bpf.RoleEgress, s.String())))
		},
		Rows: func(txn statedb.ReadTxn, s tables.EgressSelector) []*tables.Selector {
			var users []string
			for p := range policies.List(txn, tables.EgressPoliciesBySelector(s.String())) {
				users = append(users, p.Name)
			}
			if len(users) == 0 {
				return nil
			}
			slices.Sort(users)
			row, err := tables.NewSelector(bpf.RoleEgress, s, users)
			if err != nil {
				// The text is canonical: it comes from a selector that was parsed.
				return nil
			}
			return []*tables.Selector{row}
		},
		Equal: func(a, b *tables.Selector) bool { return slices.Equal(a.Policies, b.Policies) },
	})
	return err
}
