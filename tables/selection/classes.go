// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type classParams struct {
	cell.In

	Classes       statedb.RWTable[*tables.Class]
	Members       statedb.Table[*tables.ClassMember]
	Endpoints     statedb.Table[*tables.Endpoint]
	Groups        statedb.Table[*tables.EgressGroup]
	SourceEntries statedb.Table[*tables.SourceEntry]
}

// deriveClasses keeps what each number stands for, and holds back a change of
// meaning while the kernel has addresses in the class that ought to have left
// it. What is derived from the classes, and so the kernel, follows then.
func deriveClasses(p derive.Params, c classParams) error {
	_, err := derive.Register(p, derive.Rule[bpf.ClassKey, *tables.Class]{
		Output: c.Classes,
		Inputs: []derive.Input[bpf.ClassKey]{
			derive.From(c.Members, func(_ statedb.ReadTxn, m *tables.ClassMember, affect func(bpf.ClassKey)) {
				if m.Class != 0 {
					affect(bpf.ClassKey{Role: m.Role, Number: m.Class})
				}
			}),
			derive.FromIf(c.SourceEntries,
				func(old, new *tables.SourceEntry) bool { return old.Value != new.Value },
				func(_ statedb.ReadTxn, e *tables.SourceEntry, affect func(bpf.ClassKey)) {
					affect(bpf.ClassKey{Role: bpf.RoleEgress, Number: e.Value.Class})
				}),
			// Whether an address ought to leave may change without the kernel
			// having to do anything: another endpoint got it.
			derive.FromIf(c.Endpoints,
				func(old, new *tables.Endpoint) bool {
					return old.LabelSet != new.LabelSet || !slices.Equal(old.Addrs, new.Addrs)
				},
				c.affectedByEndpoint),
			derive.FromIf(c.Groups,
				func(old, new *tables.EgressGroup) bool { return old.Number != new.Number },
				func(_ statedb.ReadTxn, g *tables.EgressGroup, affect func(bpf.ClassKey)) {
					affect(bpf.ClassKey{Role: bpf.RoleGatewayGroup, Number: g.Number})
				}),
		},
		Existing: func(txn statedb.ReadTxn, key bpf.ClassKey) iter.Seq2[*tables.Class, statedb.Revision] {
			return c.Classes.List(txn, tables.ClassByKey(key))
		},
		Rows: func(txn statedb.ReadTxn, key bpf.ClassKey) []*tables.Class {
			row := c.group(txn, key)
			if key.Role != bpf.RoleGatewayGroup {
				row = c.class(txn, key)
			}
			if row == nil {
				return nil
			}
			return []*tables.Class{row}
		},
		Equal: (*tables.Class).Equal,
	})
	return err
}

func (c *classParams) affectedByEndpoint(txn statedb.ReadTxn, e *tables.Endpoint, affect func(bpf.ClassKey)) {
	for _, addr := range e.Addrs {
		key := bpf.SourceKey{Addr: bpf.AddressFrom(addr)}
		if s, _, found := c.SourceEntries.Get(txn, tables.MapEntryByKey[bpf.SourceKey, bpf.SourceValue](key)); found {
			affect(bpf.ClassKey{Role: bpf.RoleEgress, Number: s.Value.Class})
		}
	}
}

func (c *classParams) group(txn statedb.ReadTxn, key bpf.ClassKey) *tables.Class {
	g, _, found := c.Groups.Get(txn, tables.EgressGroupByNumber(key.Number))
	if !found {
		return nil
	}
	return &tables.Class{ClassKey: key, Digest: g.Digest, Status: reconciler.StatusPending()}
}

func (c *classParams) class(txn statedb.ReadTxn, key bpf.ClassKey) *tables.Class {
	m, _, wanted := c.Members.Get(txn, tables.ClassMembersByClass(key))
	if !wanted {
		return nil
	}
	existing, _, exists := c.Classes.Get(txn, tables.ClassByKey(key))
	if exists && existing.Digest != m.Digest && c.leaving(txn, key.Number) {
		row := existing.Clone()
		row.State = "changes its meaning when the kernel has moved addresses out of it"
		return row
	}
	return &tables.Class{ClassKey: key, Digest: m.Digest, Selectors: m.Selectors, Status: reconciler.StatusPending()}
}

// leaving reports whether the kernel has addresses in a class that do not
// belong there.
func (c *classParams) leaving(txn statedb.ReadTxn, number uint32) bool {
	for e := range c.SourceEntries.List(txn, tables.SourceEntriesByClass(number)) {
		owner, _ := tables.AddrOwner(txn, c.Endpoints, e.Key.Addr.Addr())
		if owner == nil {
			return true
		}
		if m := tables.MemberOf(txn, c.Members, bpf.RoleEgress, owner); m == nil || m.Class != number {
			return true
		}
	}
	return false
}
