// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type classParams struct {
	cell.In

	Classes statedb.RWTable[*tables.Class]
	Members statedb.Table[*tables.ClassMember]
	Groups  statedb.Table[*tables.EgressGroup]
}

// deriveClasses keeps what each number stands for.
func deriveClasses(p derive.Params, c classParams) error {
	_, err := derive.Register(p, derive.Rule[bpf.ClassKey, *tables.Class]{
		Output: c.Classes,
		Inputs: []derive.Input[bpf.ClassKey]{
			// Those of network policies have a row that says what they stand for.
			derive.Indexed(tables.ClassMembersByDigest(tables.RoleDigest{}), derive.Where(
				func(m *tables.ClassMember) bool { return m.Class != 0 && (m.OfClass || m.Role == bpf.RoleEgress) },
				derive.From(c.Members, func(_ statedb.ReadTxn, m *tables.ClassMember, affect func(bpf.ClassKey)) {
					affect(bpf.ClassKey{Role: m.Role, Number: m.Class})
				}))),
			derive.FromIf(c.Groups,
				func(old, new *tables.EgressGroup) bool { return old.Number != new.Number },
				func(_ statedb.ReadTxn, g *tables.EgressGroup, affect func(bpf.ClassKey)) {
					affect(bpf.ClassKey{Role: bpf.RoleGatewayGroup, Number: g.Number})
				}),
		},
		Existing: func(txn statedb.ReadTxn, key bpf.ClassKey) iter.Seq2[*tables.Class, statedb.Revision] {
			return c.Classes.List(txn, tables.ClassByKey(key))
		},
		Rows:  c.rows,
		Equal: (*tables.Class).Equal,
	})
	return err
}

func (c *classParams) rows(txn statedb.ReadTxn, key bpf.ClassKey) []*tables.Class {
	row := &tables.Class{ClassKey: key, Reconciled: tables.Pending()}
	if key.Role == bpf.RoleGatewayGroup {
		g, _, found := c.Groups.Get(txn, tables.EgressGroupByNumber(key.Number))
		if !found {
			return nil
		}
		row.Digest = g.Digest
		return []*tables.Class{row}
	}
	m := tables.ClassRow(txn, c.Members, key)
	if key.Role == bpf.RoleEgress {
		m, _, _ = c.Members.Get(txn, tables.ClassMembersByClass(key))
	}
	if m == nil || m.Digest == (bpf.Digest{}) {
		return nil
	}
	row.Digest, row.Selectors = m.Digest, m.Selectors
	return []*tables.Class{row}
}
