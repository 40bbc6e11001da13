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

type readinessParams struct {
	cell.In

	Readiness      statedb.RWTable[*tables.ClassReadiness]
	Classes        statedb.Table[*tables.Class]
	EgressClasses  statedb.Table[*tables.EgressClass]
	Policies       statedb.Table[*tables.EgressPolicy]
	Groups         statedb.Table[*tables.EgressGroup]
	Rules          statedb.Table[*tables.EgressRule]
	Gateways       statedb.Table[*tables.EgressGateway]
	ClassEntries   statedb.Table[*tables.ClassEntry]
	EgressEntries  statedb.Table[*tables.EgressEntry]
	GatewayEntries statedb.Table[*tables.GatewayEntry]
	SourceEntries  statedb.Table[*tables.SourceEntry]
	Members        statedb.Table[*tables.ClassMember]
	Endpoints      statedb.Table[*tables.Endpoint]
}

// deriveReadiness keeps how much of each class and group the kernel has.
func deriveReadiness(p derive.Params, r readinessParams) error {
	group := func(number uint32) bpf.ClassKey { return bpf.ClassKey{Role: bpf.RoleGatewayGroup, Number: number} }
	_, err := derive.Register(p, derive.Rule[bpf.ClassKey, *tables.ClassReadiness]{
		Output: r.Readiness,
		Inputs: []derive.Input[bpf.ClassKey]{
			derive.FromIf(r.Classes,
				func(old, new *tables.Class) bool { return old.Digest != new.Digest },
				func(_ statedb.ReadTxn, c *tables.Class, affect func(bpf.ClassKey)) { affect(c.ClassKey) }),
			derive.FromIf(r.ClassEntries,
				func(old, new *tables.ClassEntry) bool { return old.Value != new.Value },
				func(_ statedb.ReadTxn, e *tables.ClassEntry, affect func(bpf.ClassKey)) { affect(e.Key) }),
			derive.FromIf(r.Rules,
				func(old, new *tables.EgressRule) bool { return old.MapValue() != new.MapValue() },
				func(_ statedb.ReadTxn, rule *tables.EgressRule, affect func(bpf.ClassKey)) {
					affect(classKey(rule.Class))
				}),
			derive.FromIf(r.EgressEntries,
				func(old, new *tables.EgressEntry) bool { return old.Value != new.Value },
				func(txn statedb.ReadTxn, e *tables.EgressEntry, affect func(bpf.ClassKey)) {
					affect(classKey(e.Key.Class))
					if e.Value.Group != bpf.GroupExcluded {
						r.ifUnwanted(txn, group(e.Value.Group), affect)
					}
				}),
			derive.FromIf(r.SourceEntries,
				func(old, new *tables.SourceEntry) bool { return old.Value != new.Value || old.Wanted != new.Wanted },
				func(txn statedb.ReadTxn, e *tables.SourceEntry, affect func(bpf.ClassKey)) {
					key := classKey(e.Value.Class)
					r.ifUnwanted(txn, key, affect)
					if _, _, left := r.Members.Get(txn, tables.ClassMembersByFormer(key)); left || e.Wanted != tables.WantedSame {
						affect(key)
					}
				}),
			derive.Indexed(tables.AnyClassRow, derive.Where((*tables.ClassMember).IsClass, derive.From(r.Members,
				func(_ statedb.ReadTxn, m *tables.ClassMember, affect func(bpf.ClassKey)) {
					affect(bpf.ClassKey{Role: m.Role, Number: m.Class})
				}))),
			derive.Indexed(tables.ClassMembersByFormer(bpf.ClassKey{}), derive.Where((*tables.ClassMember).HasLeft, derive.FromIf(r.Members,
				func(old, new *tables.ClassMember) bool { return !slices.Equal(old.Former, new.Former) },
				func(_ statedb.ReadTxn, m *tables.ClassMember, affect func(bpf.ClassKey)) {
					for _, number := range m.Former {
						affect(classKey(number))
					}
				}))),
			// An address whose endpoint is gone leaves nothing any more.
			derive.While(r.leaving, derive.Joined(derive.FromIf(r.Endpoints, movesSource, r.affectedByEndpoint))),
			// Where those go that leave may change before the kernel has any of them there.
			derive.While(r.leaving, derive.Joined(derive.Indexed(tables.AnyButPeers,
				derive.Where((*tables.ClassMember).IsOfEgress, derive.FromKey(r.Members, r.affectedByMember))))),
			derive.FromIf(r.Groups,
				func(old, new *tables.EgressGroup) bool {
					return old.Number != new.Number || !slices.Equal(old.Policies, new.Policies)
				},
				func(txn statedb.ReadTxn, g *tables.EgressGroup, affect func(bpf.ClassKey)) {
					for _, policy := range g.Policies {
						for c := range r.EgressClasses.List(txn, tables.EgressClassesByPolicy(policy)) {
							affect(classKey(c.Number))
						}
					}
				}),
			derive.From(r.EgressClasses, func(_ statedb.ReadTxn, c *tables.EgressClass, affect func(bpf.ClassKey)) { affect(classKey(c.Number)) }),
			derive.FromIf(r.Gateways,
				func(old, new *tables.EgressGateway) bool { return old.MapValue() != new.MapValue() },
				func(_ statedb.ReadTxn, g *tables.EgressGateway, affect func(bpf.ClassKey)) { affect(group(g.Group)) }),
			derive.FromIf(r.GatewayEntries,
				func(old, new *tables.GatewayEntry) bool { return old.Value != new.Value },
				func(_ statedb.ReadTxn, e *tables.GatewayEntry, affect func(bpf.ClassKey)) { affect(group(e.Key.Group)) }),
		},
		Existing: func(txn statedb.ReadTxn, key bpf.ClassKey) iter.Seq2[*tables.ClassReadiness, statedb.Revision] {
			return r.Readiness.List(txn, tables.ClassReadinessByKey(key))
		},
		Rows:  r.rows,
		Equal: (*tables.ClassReadiness).Equal,
	})
	return err
}

func classKey(number uint32) bpf.ClassKey { return bpf.ClassKey{Role: bpf.RoleEgress, Number: number} }

// leaving reports whether the kernel may have addresses in a class that they leave.
func (r *readinessParams) leaving(txn statedb.ReadTxn) bool {
	for range r.Members.LowerBound(txn, tables.ClassMembersByFormer(bpf.ClassKey{})) {
		return true
	}
	for range r.SourceEntries.LowerBound(txn, tables.SourceEntriesLeaving(0)) {
		return true
	}
	return false
}

// affectedByEndpoint are the classes that addresses of the endpoint are about
// to leave.
func (r *readinessParams) affectedByEndpoint(txn statedb.ReadTxn, e *tables.Endpoint, affect func(bpf.ClassKey)) {
	for _, addr := range e.Addrs {
		key := bpf.SourceKey{Addr: bpf.AddressFrom(addr)}
		s, _, found := r.SourceEntries.Get(txn, tables.MapEntryByKey[bpf.SourceKey, bpf.SourceValue](key))
		if found && s.Wanted != tables.WantedSame {
			affect(classKey(s.Value.Class))
		}
	}
	for m := range r.Members.Prefix(txn, tables.ClassMembersOfLabelSet(bpf.RoleEgress, e.LabelSet.ID)) {
		for _, number := range m.Former {
			affect(classKey(number))
		}
	}
}

// affectedByMember are the classes that addresses of the member's endpoints are about
// to leave.
func (r *readinessParams) affectedByMember(txn statedb.ReadTxn, m *tables.ClassMember, affect func(bpf.ClassKey)) {
	for e := range r.Endpoints.List(txn, tables.EndpointsByLabelSet(m.LabelSet)) {
		r.affectedByEndpoint(txn, e, affect)
	}
}

// ifUnwanted affects a class or group whose use matters: that of one that is
// still wanted does not, and an address that joins it must not cost a look at
// all its rules.
func (r *readinessParams) ifUnwanted(txn statedb.ReadTxn, key bpf.ClassKey, affect func(bpf.ClassKey)) {
	if _, _, wanted := r.Classes.Get(txn, tables.ClassByKey(key)); !wanted {
		affect(key)
	}
}

func (r *readinessParams) rows(txn statedb.ReadTxn, key bpf.ClassKey) []*tables.ClassReadiness {
	row := &tables.ClassReadiness{ClassKey: key}
	if c, _, wanted := r.Classes.Get(txn, tables.ClassByKey(key)); wanted {
		e, _, found := r.ClassEntries.Get(txn, tables.MapEntryByKey[bpf.ClassKey, bpf.ClassValue](key))
		row.Wanted, row.Digest, row.Registered = true, c.Digest, found && e.Value.Digest == c.Digest
	}
	switch key.Role {
	case bpf.RoleEgress:
		r.class(txn, row)
	case bpf.RoleGatewayGroup:
		r.group(txn, row)
	default: // the rest is in policy-readiness
		class, revision, found := r.Members.Get(txn, tables.ClassMemberByKey(tables.MemberKey{Role: key.Role, OfClass: key.Number}))
		row.Of, row.Leaving = revision, found && len(class.Leaving) > 0
	}
	if !row.Wanted && row.RowsWanted == 0 && row.RowsExtra == 0 && !row.Used && !row.Leaving {
		return nil
	}
	return []*tables.ClassReadiness{row}
}

// class fills in what concerns the rules of a class and the addresses in it.
func (r *readinessParams) class(txn statedb.ReadTxn, row *tables.ClassReadiness) {
	for rule := range r.Rules.Prefix(txn, tables.EgressRulesOfClass(row.Number)) {
		row.RowsWanted++
		e, _, found := r.EgressEntries.Get(txn, tables.MapEntryByKey[bpf.EgressKey, bpf.EgressValue](rule.MapKey()))
		if found && e.Value == rule.MapValue() {
			row.RowsReady++
		}
	}
	row.RowsExtra = count(r.EgressEntries.List(txn, tables.EgressEntriesByClass(row.Number))) - row.RowsReady
	placement := tables.Placement{Endpoints: r.Endpoints, Members: r.Members, SourceEntries: r.SourceEntries}
	if row.Leaving = placement.Leaving(txn, row.Number); row.Leaving {
		row.LeavingTo = placement.LeavingTo(txn, row.Number)
	}
	if !row.Wanted {
		_, _, row.Used = r.SourceEntries.Get(txn, tables.SourceEntriesByClass(row.Number))
		return
	}
	c, revision, derived := r.EgressClasses.Get(txn, tables.EgressClassByNumber(row.Number))
	if !derived || c.Digest != row.Digest {
		return
	}
	row.Of = revision
	row.Complete = r.complete(txn, c, row)
}

// complete reports whether the rules of a class are those that its policies ask
// for, as they are now. The rules before a change may be as many, so they are
// looked at one by one: only when the kernel has them all, and this alone decides
// whether the class is ready.
func (r *readinessParams) complete(txn statedb.ReadTxn, class *tables.EgressClass, row *tables.ClassReadiness) bool {
	contenders, prefixes, known := contendersOf(txn, class, r.Policies, r.Groups)
	if !known || len(prefixes) != row.RowsWanted {
		return false
	}
	if row.RowsReady != row.RowsWanted || row.RowsExtra != 0 {
		return true
	}
	for rule := range r.Rules.Prefix(txn, tables.EgressRulesOfClass(class.Number)) {
		_, named := prefixes[rule.Destination]
		if !named || decide(contenders, class.Number, rule.Destination).Group != rule.Group {
			return false
		}
	}
	return true
}

// group fills in what concerns the buckets of a group and the rules to it.
func (r *readinessParams) group(txn statedb.ReadTxn, row *tables.ClassReadiness) {
	for g := range r.Gateways.Prefix(txn, tables.EgressGatewaysOfGroup(row.Number)) {
		row.RowsWanted++
		e, _, found := r.GatewayEntries.Get(txn, tables.MapEntryByKey[bpf.GatewayKey, bpf.GatewayValue](g.MapKey()))
		if found && e.Value == g.MapValue() {
			row.RowsReady++
		}
	}
	row.RowsExtra = count(r.GatewayEntries.List(txn, tables.GatewayEntriesByGroup(row.Number))) - row.RowsReady
	row.Complete = row.RowsWanted == bpf.GatewayBuckets
	if !row.Wanted {
		_, _, row.Used = r.EgressEntries.Get(txn, tables.EgressEntriesByGroup(row.Number))
	}
}

func count[Row any](rows iter.Seq2[Row, statedb.Revision]) (n int) {
	for range rows {
		n++
	}
	return n
}
