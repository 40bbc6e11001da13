// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"iter"
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

func (c *classParams) affectedByPolicy(txn statedb.ReadTxn, p *tables.EgressPolicy, affect func(uint32)) {
	for _, s := range p.Selectors {
		c.classesOf(txn, tables.NewSelectorID(bpf.RoleEgress, s.String()), affect)
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
	row := &tables.EgressClass{Number: number}
	var policies []*tables.EgressPolicy
	choices := map[string]string{}
	for _, id := range class.Selectors {
		s, _, found := c.Selectors.Get(txn, tables.SelectorByID(id))
		if !found {
			continue
		}
		for _, name := range s.Policies {
			p, _, found := c.Policies.Get(txn, tables.EgressPolicyByName(name))
			if !found {
				continue
			}
			text := s.Expression.String()
			if chosen, ok := choices[name]; !ok {
				policies = append(policies, p)
				choices[name] = text
			} else if text < chosen {
				choices[name] = text
			}
		}
	}
	slices.SortFunc(policies, func(a, b *tables.EgressPolicy) int {
		if a.Before(b) {
			return -1
		}
		return 1
	})
	for _, p := range policies {
		row.Policies = append(row.Policies, tables.PolicyChoice{Policy: p.Name, Selector: choices[p.Name]})
		if g, _, found := c.Groups.Get(txn, tables.EgressGroupByDigest(tables.GroupDigest(p.Gateways))); found && g.Local {
			row.ServedHere = true
		}
	}
	return []*tables.EgressClass{row}
}
