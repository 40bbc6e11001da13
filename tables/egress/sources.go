// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"iter"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type sourceParams struct {
	cell.In

	Sources   statedb.RWTable[*tables.EgressSource]
	Endpoints statedb.Table[*tables.Endpoint]
	Members   statedb.Table[*tables.ClassMember]
	Classes   statedb.Table[*tables.EgressClass]
	LocalNode tables.LocalNode

	PodEntries statedb.Table[*tables.PodEntry]
}

// sources derives egress-sources.
type sources struct {
	sourceParams

	// unknown are label sets of pods of which it is not known yet what chooses them. It
	// may be nothing: then there comes no row of egress.
	unknown map[tables.LabelSetID]struct{}

	// chosen has in the first round the label sets of which it is known what chooses
	// them, and whether an egress policy does.
	chosen map[tables.LabelSetID]bool
}

// deriveSources keeps the egress class of each address that this node has to
// know: those of its own pods, and of the pods that it may be a gateway for.
func deriveSources(p derive.Params, params sourceParams) error {
	s := &sources{params, map[tables.LabelSetID]struct{}{}, map[tables.LabelSetID]bool{}}
	_, err := derive.Register(p, derive.Rule[netip.Addr, *tables.EgressSource]{
		Output: s.Sources,
		Inputs: []derive.Input[netip.Addr]{
			derive.While(func(statedb.ReadTxn) bool { return len(s.unknown) > 0 },
				derive.Initially(s.knownAtFirst, derive.Where(isOfLabelSet, derive.FromKey(s.Members,
					func(txn statedb.ReadTxn, m *tables.ClassMember, affect func(netip.Addr)) {
						if _, waits := s.unknown[m.LabelSet]; waits {
							s.affectedByMember(txn, m, affect)
						}
					})))),
			derive.Joined(derive.Indexed(tables.AnyButPeers, derive.Where((*tables.ClassMember).IsOfEgress, derive.FromIf(s.Members,
				func(old, new *tables.ClassMember) bool { return old.Class != new.Class },
				s.affectedByMember)))),
			derive.While(s.inUse, derive.Initially(s.affectedAtFirst, derive.FromIf(s.Endpoints, movesSource, s.affectedByEndpoint))),
			derive.FromIf(s.Classes,
				func(old, new *tables.EgressClass) bool { return old.ServedHere != new.ServedHere },
				func(txn statedb.ReadTxn, c *tables.EgressClass, affect func(netip.Addr)) {
					for m := range s.Members.List(txn, tables.ClassMembersByClass(bpf.ClassKey{Role: bpf.RoleEgress, Number: c.Number})) {
						s.affectedByMember(txn, m, affect)
					}
				}),
			derive.FromIf(s.PodEntries,
				func(old, new *tables.PodEntry) bool { return old.Value.Flags != new.Value.Flags },
				func(_ statedb.ReadTxn, e *tables.PodEntry, affect func(netip.Addr)) { affect(e.Key.Addr.Addr()) }),
		},
		Existing: func(txn statedb.ReadTxn, addr netip.Addr) iter.Seq2[*tables.EgressSource, statedb.Revision] {
			return s.Sources.List(txn, tables.EgressSourceByAddr(addr))
		},
		Plan: func(txn statedb.ReadTxn, addrs []netip.Addr) ([]netip.Addr, func(netip.Addr) []*tables.EgressSource) {
			s.chosen = nil
			return addrs, func(addr netip.Addr) []*tables.EgressSource { return s.rows(txn, addr) }
		},
		Equal: (*tables.EgressSource).Equal,
	})
	return err
}

// inUse reports whether there is an egress class, or an address that is in one.
// Otherwise pods come and go without a row.
func (s *sources) inUse(txn statedb.ReadTxn) bool {
	if s.Sources.NumObjects(txn) > 0 || len(s.unknown) > 0 {
		return true
	}
	for range s.Members.LowerBound(txn, tables.ClassMembersByClass(bpf.ClassKey{})) {
		return true
	}
	return false
}

func movesSource(old, new *tables.Endpoint) bool {
	return old.LabelSet.ID != new.LabelSet.ID || old.Node != new.Node || !old.SameClaim(new)
}

// affectedByEndpoint are its addresses. Where it is no more what it was, nobody with its
// labels may be left to wait for.
func (s *sources) affectedByEndpoint(txn statedb.ReadTxn, e *tables.Endpoint, affect func(netip.Addr)) {
	affectAddrs(e, affect)
	if _, waits := s.unknown[e.LabelSet.ID]; !waits {
		return
	}
	if is, _, _ := s.Endpoints.Get(txn, tables.EndpointByName(e.Name)); is != e {
		s.affectedByLabelSet(txn, e.LabelSet.ID, affect)
	}
}

func isOfLabelSet(m *tables.ClassMember) bool { return m.LabelSet != (tables.LabelSetID{}) }

// knownAtFirst takes in a row of a label set: see [tables.ChosenByNoEgress].
func (s *sources) knownAtFirst(_ statedb.ReadTxn, m *tables.ClassMember, _ func(netip.Addr)) {
	s.chosen[m.LabelSet] = s.chosen[m.LabelSet] || m.IsOfEgress()
}

// affectedAtFirst is nothing for a pod elsewhere of which it is known that no egress
// policy chooses it, as are most or all: there is no row yet that could go.
func (s *sources) affectedAtFirst(txn statedb.ReadTxn, e *tables.Endpoint, affect func(netip.Addr)) {
	if chosen, known := s.chosen[e.LabelSet.ID]; chosen || !known || e.Node == s.LocalNode.Name {
		s.affectedByEndpoint(txn, e, affect)
	}
}

// affectedByMember are the addresses of the endpoints with the label set.
func (s *sources) affectedByMember(txn statedb.ReadTxn, m *tables.ClassMember, affect func(netip.Addr)) {
	if _, waits := s.unknown[m.LabelSet]; waits || m.Node == "" {
		s.affectedByLabelSet(txn, m.LabelSet, affect)
		return
	}
	for e := range s.Endpoints.List(txn, tables.EndpointsByLabelSet(m.LabelSet)) {
		if e.Node == m.Node {
			affectAddrs(e, affect)
		}
	}
}

// affectedByLabelSet are the addresses of all endpoints with a label set: whether one of
// them waits is told when they are computed.
func (s *sources) affectedByLabelSet(txn statedb.ReadTxn, id tables.LabelSetID, affect func(netip.Addr)) {
	delete(s.unknown, id)
	for e := range s.Endpoints.List(txn, tables.EndpointsByLabelSet(id)) {
		affectAddrs(e, affect)
	}
}

func affectAddrs(e *tables.Endpoint, affect func(netip.Addr)) {
	for _, addr := range e.Addrs {
		affect(addr)
	}
}

func (s *sources) rows(txn statedb.ReadTxn, addr netip.Addr) []*tables.EgressSource {
	owner, _ := tables.AddrOwner(txn, s.Endpoints, addr)
	if owner == nil {
		return nil
	}
	local := owner.Node == s.LocalNode.Name
	m := tables.MemberOf(txn, s.Members, bpf.RoleEgress, owner)
	switch {
	case m == nil:
		// It has new labels: until their class is known, it keeps its own.
		s.unknown[owner.LabelSet.ID] = struct{}{}
		return s.existing(txn, addr, owner)
	case m.Class == 0:
		return s.retiring(txn, addr, owner, local)
	}
	if !local {
		c, _, found := s.Classes.Get(txn, tables.EgressClassByNumber(m.Class))
		switch {
		case !found:
			// The class is about to be derived: until then, it keeps its own.
			return s.existing(txn, addr, owner)
		case !c.ServedHere:
			return nil
		}
	}
	return []*tables.EgressSource{{
		Addr: addr, Class: m.Class, Endpoint: owner.Name, Node: owner.Node, Reconciled: tables.Pending(),
	}}
}

// retiring keeps the row of a local pod that no policy chooses any more for as
// long as the kernel takes the pod for chosen: it would drop the traffic of a
// chosen pod whose class it does not know.
func (s *sources) retiring(txn statedb.ReadTxn, addr netip.Addr, owner *tables.Endpoint, local bool) []*tables.EgressSource {
	pod, _, found := s.PodEntries.Get(txn, tables.MapEntryByKey[bpf.PodKey, bpf.PodValue](bpf.PodKey{Addr: bpf.AddressFrom(addr)}))
	if !local || !found || pod.Value.Flags&bpf.PodEgressSelected == 0 {
		return nil
	}
	return s.existing(txn, addr, owner)
}

// existing is the row as it is, if it is of the endpoint.
func (s *sources) existing(txn statedb.ReadTxn, addr netip.Addr, owner *tables.Endpoint) []*tables.EgressSource {
	row, _, found := s.Sources.Get(txn, tables.EgressSourceByAddr(addr))
	if !found || row.Endpoint != owner.Name {
		return nil
	}
	return []*tables.EgressSource{row}
}
