// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

func deriveLimits(
	p derive.Params, limits statedb.RWTable[*tables.EgressLimit],
	policies statedb.Table[*tables.EgressPolicy],
) error {
	return derive.Register(p, limitRule(limits, policies))
}

// limitRule keeps the limits of policies by their cookies. Should two policies have the same
// cookie, their traffic is counted together, and has the limits of the one that wins.
func limitRule(
	limits statedb.RWTable[*tables.EgressLimit], policies statedb.Table[*tables.EgressPolicy],
) derive.Rule[uint32] {
	return derive.Rule[uint32]{
		Outputs: []statedb.TableMeta{limits},
		Inputs: []derive.Input[uint32]{
			derive.FromIf(policies,
				func(old, new *tables.EgressPolicy) bool {
					return old.Bandwidth != new.Bandwidth || old.PodBandwidth != new.PodBandwidth ||
						!old.Created.Equal(new.Created)
				},
				func(_ statedb.ReadTxn, policy *tables.EgressPolicy, mark func(uint32)) {
					if policy.IsLimited() {
						mark(bpf.PolicyCookie(policy.Name))
					}
				}),
		},
		Compute: derive.Each(
			limits, tables.EgressLimitByCookie, (*tables.EgressLimit).Equal,
			func(txn statedb.ReadTxn, cookie uint32) *tables.EgressLimit {
				var first *tables.EgressPolicy
				for policy := range policies.List(txn, tables.EgressPoliciesLimited(cookie)) {
					if first == nil || policy.Before(first) {
						first = policy
					}
				}
				if first == nil {
					return nil
				}
				return &tables.EgressLimit{
					Cookie: cookie, Policy: first.Name, Bandwidth: first.Bandwidth,
					PodBandwidth: first.PodBandwidth, Reconciled: tables.Pending(),
				}
			}),
	}
}
