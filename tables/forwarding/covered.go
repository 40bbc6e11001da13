// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// deriveCovered keeps the destinations of all policies, whoever they choose: a
// pod that is not known yet may be chosen by any.
func deriveCovered(p derive.Params, covered statedb.RWTable[*tables.CoveredPrefix], policies statedb.Table[*tables.EgressPolicy]) error {
	_, err := derive.Register(p, derive.Rule[netip.Prefix, *tables.CoveredPrefix]{
		Output: covered,
		Inputs: []derive.Input[netip.Prefix]{
			derive.FromIf(policies,
				func(old, new *tables.EgressPolicy) bool { return !slices.Equal(old.Destinations, new.Destinations) },
				func(_ statedb.ReadTxn, policy *tables.EgressPolicy, affect func(netip.Prefix)) {
					for _, prefix := range policy.Destinations {
						affect(prefix)
					}
				}),
		},
		Existing: func(txn statedb.ReadTxn, prefix netip.Prefix) iter.Seq2[*tables.CoveredPrefix, statedb.Revision] {
			return covered.List(txn, tables.CoveredPrefixByPrefix(prefix))
		},
		Rows: func(txn statedb.ReadTxn, prefix netip.Prefix) []*tables.CoveredPrefix {
			row := &tables.CoveredPrefix{Prefix: prefix, Reconciled: tables.Pending()}
			for policy := range policies.List(txn, tables.EgressPoliciesByDestination(prefix)) {
				row.Policies = append(row.Policies, policy.Name)
			}
			if len(row.Policies) == 0 {
				return nil
			}
			slices.Sort(row.Policies)
			return []*tables.CoveredPrefix{row}
		},
		Equal: (*tables.CoveredPrefix).Equal,
	})
	return err
}
