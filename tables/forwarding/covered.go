// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// deriveCovered keeps the destinations of all policies, whatever pods they select:
// any may select a pod that is not known yet.
func deriveCovered(
	p derive.Params, covered statedb.RWTable[*tables.CoveredPrefix],
	policies statedb.Table[*tables.EgressPolicy],
) error {
	return derive.Register(p, derive.Rule[netip.Prefix]{
		Outputs: []statedb.TableMeta{covered},
		Inputs: []derive.Input[netip.Prefix]{
			derive.FromIf(policies,
				func(old, new *tables.EgressPolicy) bool {
					return !slices.Equal(old.Destinations, new.Destinations)
				},
				func(_ statedb.ReadTxn, policy *tables.EgressPolicy, mark func(netip.Prefix)) {
					for _, prefix := range policy.Destinations {
						mark(prefix)
					}
				}),
		},
		Compute: derive.Each(
			covered, tables.CoveredPrefixByPrefix, (*tables.CoveredPrefix).Equal,
			func(txn statedb.ReadTxn, prefix netip.Prefix) *tables.CoveredPrefix {
				row := &tables.CoveredPrefix{Prefix: prefix, Reconciled: tables.Pending()}
				for policy := range policies.List(txn, tables.EgressPoliciesByDestination(prefix)) {
					row.Policies = append(row.Policies, policy.Name)
				}
				if len(row.Policies) == 0 {
					return nil
				}
				slices.Sort(row.Policies)
				return row
			}),
	})
}
