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
}

// deriveSelectors interns the selectors of all policies that are wanted, and of
// rules that are in force or that the kernel still has something of.
func deriveSelectors(p derive.Params, params selectorParams) error {
	r := &selectorRule{params, base(params.Enforcement), map[selectorKey]tables.SelectorSpec{}}
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
			derive.From(r.Backends, r.affectedByBackends),
			// The rules follow from the selectors, and the policies' own are told above.
			derive.Feedback(derive.FromChange(r.Rules, r.affectedByRules)),
		},
		Seed: slices.Collect(maps.Keys(r.base)),
		Existing: func(txn statedb.ReadTxn, key selectorKey) iter.Seq2[*tables.Selector, statedb.Revision] {
			return r.Selectors.List(txn, tables.SelectorByID(key.id()))
		},
		Rows: r.rows,
		Equal: func(a, b *tables.Selector) bool {
			return a.Resolution.Equal(&b.Resolution) && slices.Equal(a.Policies, b.Policies)
		},
	})
	return err
}

// affectedByPolicy are the selectors that it has come to name or names no more.
// Those that it still does have the same users as before.
func (r *selectorRule) affectedByPolicy(_ statedb.ReadTxn, old, new *tables.NetworkPolicy, affect func(selectorKey)) {
	changed := map[selectorKey]int{}
	for _, p := range []*tables.NetworkPolicy{old, new} {
		if p != nil {
			for _, s := range p.Selectors() {
				changed[keyOfSelector(s)]++
				r.named[keyOfSelector(s)] = s
			}
		}
	}
	for key, n := range changed {
		if n == 1 {
			affect(key)
		} else {
			delete(r.named, key)
		}
	}
}

// affectedByRules are selectors that may have lost their last user.
func (r *selectorRule) affectedByRules(txn statedb.ReadTxn, old, new *tables.EnforcedPolicy, affect func(selectorKey)) {
	var before, now []tables.SelectorID
	if old != nil {
		before = old.Selectors()
	}
	if new != nil {
		now = new.Selectors()
	}
	for _, id := range slices.Concat(before, now) {
		_, was := slices.BinarySearch(before, id)
		if _, is := slices.BinarySearch(now, id); was && is {
			continue
		}
		if s, _, found := r.Selectors.Get(txn, tables.SelectorByID(id)); found {
			affect(keyOfSelector(s.SelectorSpec))
		}
	}
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
	users := map[string]bool{}
	for p := range r.NetworkPolicies.List(txn, tables.NetworkPoliciesBySelector(id)) {
		users[p.ID().String()] = true
	}
	for p := range r.Rules.List(txn, tables.EnforcedPoliciesBySelector(id)) {
		users[p.Policy.String()] = true
	}
	if key.role == bpf.RoleEgress {
		for p := range r.EgressPolicies.List(txn, tables.EgressPoliciesBySelector(key.text)) {
			users[p.Name] = true
			i := slices.IndexFunc(p.Selectors, func(s tables.EgressSelector) bool { return s.String() == key.text })
			spec = tables.PodSelector(key.role, p.Selectors[i])
		}
	}
	if len(users) == 0 && !used || spec.Role == 0 {
		return nil
	}
	row, err := tables.NewSelector(spec, r.resolve(txn, spec.Peer), slices.Sorted(maps.Keys(users)))
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
