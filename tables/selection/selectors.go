// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"
	"maps"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// selectorKey is what selectors are interned by.
type selectorKey struct {
	role bpf.Role
	text string
}

func (k selectorKey) id() tables.SelectorID { return tables.NewSelectorID(k.role, k.text) }

func keyOfSelector(s tables.SelectorSpec) selectorKey { return selectorKey{s.Role, s.Text} }

type selectorParams struct {
	cell.In

	Selectors       statedb.RWTable[*tables.Selector]
	EgressPolicies  statedb.Table[*tables.EgressPolicy]
	NetworkPolicies statedb.Table[*tables.NetworkPolicy]
	Rules           statedb.Table[*tables.EnforcedPolicy]
	Groups          statedb.Table[*tables.CIDRGroup]
	Services        statedb.Table[*tables.Service]
	Backends        statedb.Table[*tables.BackendSlice]
	Enforcement     tables.Enforcement
	CIDRMatch       cidrMatch
}

// entities are the selectors that there always are: a policy that names one
// then has nobody change class.
var entities = []tables.PolicyEntity{
	tables.EntityWorld, tables.EntityWorldIPv4, tables.EntityWorldIPv6, tables.EntityCluster, tables.EntityHost, tables.EntityRemoteNode,
}

// base are the selectors that there are without a policy.
func base(e tables.Enforcement) map[selectorKey]tables.SelectorSpec {
	specs := map[selectorKey]tables.SelectorSpec{}
	for _, entity := range entities {
		s := tables.EntitySelector(entity)
		specs[keyOfSelector(s)] = s
	}
	if e == tables.EnforcementAlways {
		s := tables.PodSelector(bpf.RoleSubject, tables.EgressSelector{})
		specs[keyOfSelector(s)] = s
	}
	return specs
}

// selectorRule interns the selectors of all policies, by their text.
type selectorRule struct {
	selectorParams
	base  map[selectorKey]tables.SelectorSpec
	named map[selectorKey]tables.SelectorSpec // by policies that have changed in the round

	// users are how many network policies name a selector: as an index of the table
	// they would take as much memory as the policies.
	users map[tables.SelectorID]int32
}

// deriveSelectors interns the selectors of all policies that are wanted, and of
// rules that are in force or that the kernel still has something of.
func deriveSelectors(p derive.Params, params selectorParams) error {
	r := &selectorRule{params, base(params.Enforcement), map[selectorKey]tables.SelectorSpec{}, map[tables.SelectorID]int32{}}
	_, err := derive.Register(p, derive.Rule[selectorKey, *tables.Selector]{
		Output: r.Selectors,
		Inputs: []derive.Input[selectorKey]{
			derive.From(r.EgressPolicies, func(_ statedb.ReadTxn, p *tables.EgressPolicy, affect func(selectorKey)) {
				for _, s := range p.Selectors {
					affect(selectorKey{bpf.RoleEgress, s.String()})
				}
			}),
			derive.FromChange(r.NetworkPolicies, r.affectedByPolicy),
			derive.FromChange(r.Groups, r.affectedByGroup),
			derive.FromChange(r.Services, r.affectedByService),
			derive.FromIf(r.Backends, tables.DifferentBackends, r.affectedByBackends),
			// The rules follow from the selectors, and the policies' own are told above.
			derive.Feedback(derive.FromChange(r.Rules, r.affectedByRules)),
		},
		// No policy comes into force by a round that has yet to see that it has changed,
		// and that its selectors go.
		Exclusive: []statedb.TableMeta{r.Rules},
		Seed:      slices.Collect(maps.Keys(r.base)),
		Existing: func(txn statedb.ReadTxn, key selectorKey) iter.Seq2[*tables.Selector, statedb.Revision] {
			return r.Selectors.List(txn, tables.SelectorByID(key.id()))
		},
		Rows:  r.rows,
		Equal: func(a, b *tables.Selector) bool { return a.Resolution.Equal(&b.Resolution) },
	})
	return err
}

// affectedByPolicy are the selectors that it names and that there are not yet, and
// those that may have lost their last user.
func (r *selectorRule) affectedByPolicy(txn statedb.ReadTxn, old, new *tables.NetworkPolicy, affect func(selectorKey)) {
	if new != nil {
		for _, s := range new.Selectors() {
			id := s.ID()
			r.users[id]++
			if _, _, found := r.Selectors.Get(txn, tables.SelectorByID(id)); !found {
				r.named[keyOfSelector(s)] = s
				affect(keyOfSelector(s))
			}
		}
	}
	if old != nil {
		ids := old.SelectorIDs()
		for _, id := range ids {
			if r.users[id]--; r.users[id] == 0 {
				delete(r.users, id)
			}
		}
		r.affectedByLoss(txn, ids, affect)
	}
}

// affectedByRules are selectors that may have lost their last user.
func (r *selectorRule) affectedByRules(txn statedb.ReadTxn, old, _ *tables.EnforcedPolicy, affect func(selectorKey)) {
	if old != nil {
		r.affectedByLoss(txn, old.Selectors(), affect)
	}
}

// affectedByLoss are those of some selectors that nobody names any more.
func (r *selectorRule) affectedByLoss(txn statedb.ReadTxn, ids []tables.SelectorID, affect func(selectorKey)) {
	for _, id := range ids {
		if s, _, found := r.Selectors.Get(txn, tables.SelectorByID(id)); found && !r.isNamed(txn, id) {
			affect(keyOfSelector(s.SelectorSpec))
		}
	}
}

// isNamed reports whether a network policy names a selector, or a rule of one that
// is in force or retired.
func (r *selectorRule) isNamed(txn statedb.ReadTxn, id tables.SelectorID) bool {
	if r.users[id] > 0 {
		return true
	}
	for range tables.EnforcedPoliciesBySelector(txn, r.Rules, id) {
		return true
	}
	return false
}

func (r *selectorRule) affectedByGroup(txn statedb.ReadTxn, old, new *tables.CIDRGroup, affect func(selectorKey)) {
	for s := range r.Selectors.List(txn, tables.SelectorsByKind(tables.PeerCIDRGroups)) {
		if old != nil && means(s.Peer, old.Name, old.Labels) || new != nil && means(s.Peer, new.Name, new.Labels) {
			affect(keyOfSelector(s.SelectorSpec))
		}
	}
}

func (r *selectorRule) affectedByService(txn statedb.ReadTxn, old, new *tables.Service, affect func(selectorKey)) {
	for s := range r.Selectors.List(txn, tables.SelectorsByKind(tables.PeerServices)) {
		if old != nil && meansService(s.Peer, old) || new != nil && meansService(s.Peer, new) {
			affect(keyOfSelector(s.SelectorSpec))
		}
	}
}

func (r *selectorRule) affectedByBackends(txn statedb.ReadTxn, b *tables.BackendSlice, affect func(selectorKey)) {
	if b.Service == tables.KubernetesAPIService {
		affect(keyOfSelector(tables.EntitySelector(tables.EntityKubeAPIServer)))
	}
	service, _, found := r.Services.Get(txn, tables.ServiceByName(b.Service))
	if !found {
		return
	}
	for s := range r.Selectors.List(txn, tables.SelectorsByKind(tables.PeerServices)) {
		if meansService(s.Peer, service) {
			affect(keyOfSelector(s.SelectorSpec))
		}
	}
}

func (r *selectorRule) rows(txn statedb.ReadTxn, key selectorKey) []*tables.Selector {
	id := key.id()
	spec, used := r.base[key]
	former, _, found := r.Selectors.Get(txn, tables.SelectorByID(id))
	if found && !used {
		spec = former.SelectorSpec
	} else if named, ok := r.named[key]; ok && !used {
		spec = named
	}
	delete(r.named, key)
	if key.role == bpf.RoleEgress {
		var p *tables.EgressPolicy
		if p, _, used = r.EgressPolicies.Get(txn, tables.EgressPoliciesBySelector(key.text)); used {
			i := slices.IndexFunc(p.Selectors, func(s tables.EgressSelector) bool { return s.String() == key.text })
			spec = tables.PodSelector(key.role, p.Selectors[i])
		}
	}
	if !used && !r.isNamed(txn, id) || spec.Role == 0 {
		return nil
	}
	row, err := tables.NewSelector(spec, r.resolve(txn, spec.Peer))
	if err != nil {
		// The text is canonical: it comes from a selector that was parsed.
		return nil
	}
	row.Version = r.Selectors.Revision(txn) + 1
	if found && former.Resolution.Equal(&row.Resolution) {
		row.Version = former.Version
	}
	return []*tables.Selector{row}
}
