// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type policyStatusParams struct {
	cell.In

	Output   statedb.RWTable[*tables.EgressPolicyStatus]
	Policies statedb.Table[*tables.EgressPolicy]
	Rules    statedb.Table[*tables.EgressRule]
	Groups   statedb.Table[*tables.EgressGroup]
}

// derivePolicyStatus keeps how each policy fares on this node.
func derivePolicyStatus(p derive.Params, s policyStatusParams) error {
	_, err := derive.Register(p, derive.Rule[string, *tables.EgressPolicyStatus]{
		Output: s.Output,
		Inputs: []derive.Input[string]{
			derive.From(s.Policies, func(_ statedb.ReadTxn, p *tables.EgressPolicy, affect func(string)) { affect(p.Name) }),
			derive.From(s.Rules, func(_ statedb.ReadTxn, r *tables.EgressRule, affect func(string)) {
				affect(r.Policy)
				for _, name := range r.Overrides {
					affect(name)
				}
			}),
			derive.From(s.Groups, func(_ statedb.ReadTxn, g *tables.EgressGroup, affect func(string)) {
				for _, name := range g.Policies {
					affect(name)
				}
			}),
		},
		Existing: func(txn statedb.ReadTxn, policy string) iter.Seq2[*tables.EgressPolicyStatus, statedb.Revision] {
			return s.Output.List(txn, tables.EgressPolicyStatusByPolicy(policy))
		},
		Rows:  s.rows,
		Equal: (*tables.EgressPolicyStatus).Equal,
	})
	return err
}

func (s *policyStatusParams) rows(txn statedb.ReadTxn, name string) []*tables.EgressPolicyStatus {
	p, _, found := s.Policies.Get(txn, tables.EgressPolicyByName(name))
	if !found {
		return nil
	}
	row := &tables.EgressPolicyStatus{Policy: name, UID: p.UID, Generation: p.Generation}
	for _, e := range p.Errors {
		row.Errors = append(row.Errors, e.Error())
	}
	if g, _, found := s.Groups.Get(txn, tables.EgressGroupByDigest(tables.GroupDigest(p.Gateways))); found {
		for _, c := range g.Gateways {
			row.Gateways = append(row.Gateways, c.String())
		}
	}
	for r := range s.Rules.List(txn, tables.EgressRulesByPolicy(name)) {
		if r.Policy != name {
			row.LosesTo = append(row.LosesTo, fmt.Sprintf("%s goes to policy %s", r.Destination, r.Policy))
			continue
		}
		if len(r.Overrides) > 0 && r.Group != bpf.GroupExcluded {
			row.Conflicts = append(row.Conflicts, fmt.Sprintf("%s is also wanted by %v", r.Destination, r.Overrides))
		}
		row.Rules++
		switch r.Status.Kind {
		case reconciler.StatusKindDone:
			row.Programmed++
		case reconciler.StatusKindError:
			row.Failed++
			row.Refused = cmp.Or(row.Refused, fmt.Sprintf("%s: %s", r.Destination, r.Status.GetError()))
		}
	}
	slices.Sort(row.LosesTo)
	row.LosesTo = slices.Compact(row.LosesTo)
	row.Conflicts = append(row.Conflicts, row.LosesTo...)
	slices.Sort(row.Conflicts)
	row.Conflicts = slices.Compact(row.Conflicts)
	return []*tables.EgressPolicyStatus{row}
}
