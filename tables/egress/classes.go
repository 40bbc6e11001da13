// SPDX-License-Identifier: Apache-2.0

package egress

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

type classParams struct {
	cell.In

	Output    statedb.RWTable[*tables.EgressClass]
	Classes   statedb.Table[*tables.Class]
	Members   statedb.Table[*tables.ClassMember]
	Selectors statedb.Table[*tables.Selector]
	Policies  statedb.Table[*tables.EgressPolicy]
	Groups    statedb.Table[*tables.EgressGroup]
}

// deriveClasses keeps which policies apply to each egress class, in the order
// in which they win.
func deriveClasses(p derive.Params, c classParams) error {
	_, err := derive.Register(p, derive.Rule[uint32, *tables.EgressClass]{
		Output: c.Output,
		Inputs: []derive.Input[uint32]{
			derive.FromIf(c.Classes,
				func(old, new *tables.Class) bool { return old.Digest != new.Digest },
				func(_ statedb.ReadTxn, class *tables.Class, affect func(uint32)) {
					if class.Role == bpf.RoleEgress {
						affect(class.Number)
					}
				}),
			derive.From(c.Selectors, func(txn statedb.ReadTxn, s *tables.Selector, affect func(uint32)) {
				c.classesOf(txn, s.ID, affect)
			}),
			derive.From(c.Policies, c.affectedByPolicy),
			derive.Joined(derive.Indexed(tables.AnyButPeers, derive.Where((*tables.ClassMember).IsOfEgress, derive.From(c.Members, c.affectedByMember)))),
			derive.FromIf(c.Groups,
				func(old, new *tables.EgressGroup) bool {
					return old.Local != new.Local || !slices.Equal(old.Policies, new.Policies)
				},
				func(txn statedb.ReadTxn, g *tables.EgressGroup, affect func(uint32)) {
					for _, name := range g.Policies {
						if p, _, found := c.Policies.Get(txn, tables.EgressPolicyByName(name)); found {
							c.affectedByPolicy(txn, p, affect)
						}
					}
				}),
		},
		Existing: func(txn statedb.ReadTxn, number uint32) iter.Seq2[*tables.EgressClass, statedb.Revision] {
			return c.Output.List(txn, tables.EgressClassByNumber(number))
		},
		Rows:  c.rows,
		Equal: (*tables.EgressClass).Equal,
	})
	return err
}

// affectedByPolicy are the classes that it chooses, and those that it chose.
func (c *classParams) affectedByPolicy(txn statedb.ReadTxn, p *tables.EgressPolicy, affect func(uint32)) {
	for class := range c.Output.List(txn, tables.EgressClassesByPolicy(p.Name)) {
		affect(class.Number)
	}
	for _, s := range p.Selectors {
		c.classesOf(txn, tables.NewSelectorID(bpf.RoleEgress, s.String()), affect)
	}
}

// affectedByMember are the classes that may now have caught up, see [classParams.policies].
func (c *classParams) affectedByMember(txn statedb.ReadTxn, m *tables.ClassMember, affect func(uint32)) {
	if m.Evaluated == 0 {
		class, _, found := c.Classes.Get(txn, tables.ClassByKey(bpf.ClassKey{Role: m.Role, Number: m.Class}))
		if found && class.Digest != m.Digest {
			affect(m.Class)
		}
		return
	}
	s, _, found := c.Selectors.Get(txn, tables.SelectorByID(m.Evaluated))
	if !found {
		return
	}
	for p := range c.Policies.List(txn, tables.EgressPoliciesBySelector(s.Text)) {
		c.affectedByPolicy(txn, p, affect)
	}
}

func (c *classParams) classesOf(txn statedb.ReadTxn, id tables.SelectorID, affect func(uint32)) {
	for class := range c.Classes.List(txn, tables.ClassesBySelector(id)) {
		if class.Role == bpf.RoleEgress {
			affect(class.Number)
		}
	}
}

func (c *classParams) rows(txn statedb.ReadTxn, number uint32) []*tables.EgressClass {
	class, _, found := c.Classes.Get(txn, tables.ClassByKey(bpf.ClassKey{Role: bpf.RoleEgress, Number: number}))
	if !found {
		return nil
	}
	row := &tables.EgressClass{Number: number, Digest: class.Digest}
	if caughtUp := c.policies(txn, class, row); !caughtUp {
		// The former row is consistent, at least.
		return statedb.Collect(c.Output.List(txn, tables.EgressClassByNumber(number)))
	}
	return []*tables.EgressClass{row}
}

// policies fills in the policies that apply to a class, and reports whether
// the class has caught up with them. A policy and the selectors in the signature
// of a class come here by different ways: where one is of a moment before the
// other, the new destinations of a policy could meet its former choice.
func (c *classParams) policies(txn statedb.ReadTxn, class *tables.Class, row *tables.EgressClass) (caughtUp bool) {
	m, _, found := c.Members.Get(txn, tables.ClassMembersByClass(class.ClassKey))
	if !found || m.Digest != class.Digest {
		return false // the class is about to change its meaning
	}
	applying := map[string]*application{}
	former, _, _ := c.Output.Get(txn, tables.EgressClassByNumber(class.Number))
	if former != nil {
		for _, choice := range former.Policies {
			if p, _, found := c.Policies.Get(txn, tables.EgressPolicyByName(choice.Policy)); found && !c.evaluated(txn, p) {
				return false // it may still apply, by a selector that is yet to be looked at
			}
		}
	}
	for _, id := range class.Selectors {
		s, _, found := c.Selectors.Get(txn, tables.SelectorByID(id))
		if !found {
			return false
		}
		text := s.Text
		for p, revision := range c.Policies.List(txn, tables.EgressPoliciesBySelector(text)) {
			if !c.evaluated(txn, p) {
				return false
			}
			if a := applying[p.Name]; a == nil || text < a.selector {
				applying[p.Name] = &application{p, revision, text}
			}
		}
	}
	c.fill(txn, row, applying)
	return true
}

// fill puts the policies into the row, in the order in which they win.
func (c *classParams) fill(txn statedb.ReadTxn, row *tables.EgressClass, applying map[string]*application) {
	ordered := slices.SortedFunc(maps.Values(applying), func(a, b *application) int {
		if a.policy.Before(b.policy) {
			return -1
		}
		return 1
	})
	for _, a := range ordered {
		row.Policies = append(row.Policies, tables.PolicyChoice{Policy: a.policy.Name, Selector: a.selector, Revision: a.revision})
		if g, _, found := c.Groups.Get(txn, tables.EgressGroupByDigest(tables.GroupDigest(a.policy.Gateways))); found && g.Local {
			row.ServedHere = true
		}
	}
}

// application is a policy that applies to a class, through a selector.
type application struct {
	policy   *tables.EgressPolicy
	revision statedb.Revision
	selector string
}

// evaluated reports whether all selectors of a policy are taken into account.
func (c *classParams) evaluated(txn statedb.ReadTxn, p *tables.EgressPolicy) bool {
	for _, s := range p.Selectors {
		if !tables.SelectorIsEvaluated(txn, c.Members, bpf.RoleEgress, tables.NewSelectorID(bpf.RoleEgress, s.String())) {
			return false
		}
	}
	return true
}
