// SPDX-License-Identifier: Apache-2.0

package voters

import (
	"maps"
	"slices"
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type rule struct {
	cell.In

	EgressIPs  tables.EgressIPs
	Output     statedb.RWTable[*tables.WantedEgressVoters]
	Voters     statedb.Table[*tables.EgressVoters]
	Nodes      statedb.Table[*tables.Node]
	Pools      statedb.Table[*tables.EgressIPPool]
	Reports    statedb.Table[*tables.NodeReport]
	Leadership statedb.Table[*tables.Leadership]
	Clock      statedb.Table[*tables.Clock]
}

// theSet is the one key of the rule.
const theSet = 0

func register(p derive.Params, r rule) error {
	if !r.EgressIPs.Enabled {
		return nil
	}
	return derive.Register(p, r.declare())
}

func (r *rule) declare() derive.Rule[int] {
	all := func(_ statedb.ReadTxn, mark func(int)) { mark(theSet) }
	return derive.Rule[int]{
		Outputs: []statedb.TableMeta{r.Output},
		Inputs: []derive.Input[int]{
			derive.OnChange(r.Voters, all),
			derive.OnChange(r.Leadership, all),
			derive.FromIf(r.Pools,
				func(old, new *tables.EgressIPPool) bool {
					return old.Nodes != new.Nodes || old.Error != new.Error
				},
				func(_ statedb.ReadTxn, _ *tables.EgressIPPool, mark func(int)) { mark(theSet) }),
			derive.FromIf(r.Nodes, isOtherwise,
				func(_ statedb.ReadTxn, _ *tables.Node, mark func(int)) { mark(theSet) }),
			derive.FromIf(r.Reports,
				func(old, new *tables.NodeReport) bool { return old.EgressVoters != new.EgressVoters },
				func(_ statedb.ReadTxn, _ *tables.NodeReport, mark func(int)) { mark(theSet) }),
			derive.OnChange(r.Clock, func(now statedb.ReadTxn, mark func(int)) {
				if r.changes(now) {
					mark(theSet)
				}
			}),
		},
		Compute: func(in statedb.ReadTxn, out statedb.WriteTxn, _ []int, _ func(int)) error {
			equal := (*tables.WantedEgressVoters).Equal
			return derive.Replace(out, r.Output, equal, r.Output.All(out), r.rows(in)...)
		},
	}
}

// isOtherwise reports whether two versions of a node may make a difference to who votes.
func isOtherwise(old, new *tables.Node) bool {
	return old.Ready != new.Ready || old.Times != new.Times &&
		(old.Times == nil || new.Times == nil || *old.Times != *new.Times) ||
		old.UnderlayIP() != new.UnderlayIP() || !maps.Equal(old.Labels, new.Labels)
}

// changes reports whether time may change what is wanted: there are two sets, or a voter is not
// ready, and may be unfit later.
func (r *rule) changes(in statedb.ReadTxn) bool {
	for voters := range r.Voters.All(in) {
		if len(voters.Sets) > 1 {
			return true
		}
		for _, v := range voters.Last().Voters {
			if n, _, found := r.Nodes.Get(in, tables.NodeByName(v.Node)); found && !n.Ready {
				return true
			}
		}
	}
	return false
}

// rows returns a row while this operator leads and there are pools, or none.
func (r *rule) rows(in statedb.ReadTxn) []*tables.WantedEgressVoters {
	now := tables.Now(in, r.Clock)
	if !tables.Leads(in, r.Leadership) || now.IsZero() || r.Pools.NumObjects(in) == 0 {
		return nil
	}
	v := view{now: now, acked: map[string]uint32{}}
	v.set, _, _ = r.Voters.Get(in, tables.EgressVotersByIndex(0))
	selects := r.selectors(in)
	for n := range r.Nodes.All(in) {
		if n.RunsAgent() {
			v.nodes = append(v.nodes, node{n, slices.ContainsFunc(selects, func(s labels.Selector) bool {
				return s.Matches(n.Labels)
			})})
		}
	}
	for report := range r.Reports.All(in) {
		v.acked[report.Node] = report.EgressVoters
	}
	return []*tables.WantedEgressVoters{v.row()}
}

// selectors are those of the pools that select nodes, once each.
func (r *rule) selectors(in statedb.ReadTxn) (selectors []labels.Selector) {
	texts := map[string]bool{}
	for p := range r.Pools.All(in) {
		if p.Error == "" && !p.Fixed {
			texts[p.Nodes] = true
		}
	}
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		if s, err := labels.Parse(text); err == nil { // it is of the object's own selector
			selectors = append(selectors, s)
		}
	}
	return selectors
}

// row returns what the object shall say.
func (v *view) row() *tables.WantedEgressVoters {
	d := v.decide()
	row := &tables.WantedEgressVoters{
		Generation: d.generation, Sets: d.sets, Waits: d.waits, Problem: d.problem,
	}
	if v.set != nil && v.set.Object != nil {
		row.From = *v.set.Object
	}
	row.Reconciled = tables.Pending()
	unchanged := v.set == nil && d.generation == 0 ||
		v.set != nil && d.generation == v.set.Generation
	if unchanged && d.problem == "" {
		row.Reconciled = tables.Done()
	}
	return row
}

func byName(a, b tables.EgressVoter) int { return strings.Compare(a.Node, b.Node) }
