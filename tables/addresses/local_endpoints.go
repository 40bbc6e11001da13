// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"fmt"
	"iter"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type localParams struct {
	cell.In

	Locals     statedb.RWTable[*tables.LocalEndpoint]
	Endpoints  statedb.Table[*tables.Endpoint]
	Members    statedb.Table[*tables.ClassMember]
	Devices    statedb.Table[*tables.Device]
	Routes     statedb.Table[*tables.Route]
	Neighbours statedb.Table[*tables.Neighbour]
	Bridges    statedb.Table[*tables.BridgeEntry]
	LocalNode  tables.LocalNode
	Epochs     epochParams

	Attachments statedb.Table[*tables.CNIAttachment]

	Readiness   statedb.Table[*tables.PolicyReadiness]
	Enforcement tables.Enforcement
}

// deriveLocalEndpoints keeps the addresses of this node's pods, with the device
// that leads to each. The device depends on history, by the former output: what
// the kernel once knew of a pod, and has forgotten since, is still so. An agent that
// starts has the kernel asked for it anew.
func deriveLocalEndpoints(p derive.Params, l localParams) error {
	v := newVerdicts()
	_, err := derive.Register(p, derive.Rule[netip.Addr, *tables.LocalEndpoint]{
		Output: l.Locals,
		Inputs: []derive.Input[netip.Addr]{
			derive.Initially(l.affectedAsLocal, derive.FromIf(l.Endpoints,
				func(old, new *tables.Endpoint) bool {
					return old.LabelSet.ID != new.LabelSet.ID || movesAddress(old, new)
				},
				l.affectedByEndpoint)),
			derive.Joined(l.fromMembers()),
			derive.From(l.Routes, func(txn statedb.ReadTxn, r *tables.Route, affect func(netip.Addr)) {
				if r.Destination.IsSingleIP() && r.Table == tables.RouteTableMain {
					affect(r.Destination.Addr())
				}
			}),
			derive.From(l.Neighbours, func(_ statedb.ReadTxn, n *tables.Neighbour, affect func(netip.Addr)) { affect(n.Addr) }),
			derive.From(l.Bridges, l.affectedByBridge),
			derive.From(l.Attachments, l.affectedByAttachment),
			derive.FromIf(l.Devices,
				func(old, new *tables.Device) bool {
					return old.Name != new.Name || old.Type != new.Type || old.MasterIndex != new.MasterIndex
				},
				l.affectedByDevice),
			derive.FromIf(l.Epochs.SourceEntries,
				func(old, new *tables.SourceEntry) bool { return old.Value != new.Value },
				l.affectedBySource),
			derive.FromIf(l.Epochs.EgressEntries,
				func(old, new *tables.EgressEntry) bool {
					return (old.Value.Group == bpf.GroupExcluded) != (new.Value.Group == bpf.GroupExcluded)
				},
				func(txn statedb.ReadTxn, e *tables.EgressEntry, affect func(netip.Addr)) {
					for row := range l.Locals.List(txn, tables.LocalEndpointsBySourceClass(e.Key.Class)) {
						affect(row.Addr)
					}
				}),
			derive.From(l.Readiness, l.affectedByReadiness),
			derive.FromChange(l.Epochs.PolicyEntries, v.policyChanged),
			derive.FromChange(l.Epochs.IPCacheEntries, v.peerChanged),
		},
		After: []statedb.TableMeta{l.Epochs.PodEntries, l.Epochs.CoveredEntries},
		Existing: func(txn statedb.ReadTxn, addr netip.Addr) iter.Seq2[*tables.LocalEndpoint, statedb.Revision] {
			return l.Locals.List(txn, tables.LocalEndpointByAddr(addr))
		},
		Plan:  l.planner(v),
		Equal: (*tables.LocalEndpoint).Equal,
	})
	return err
}

// affectedBySource are addresses of this node: sources are also those of others.
func (l *localParams) affectedBySource(txn statedb.ReadTxn, e *tables.SourceEntry, affect func(netip.Addr)) {
	addr := e.Key.Addr.Addr()
	if _, _, local := l.Locals.Get(txn, tables.LocalEndpointByAddr(addr)); local {
		affect(addr)
	}
}

// planner returns the function that plans the rounds of the rule, which give
// out epochs.
func (l *localParams) planner(v *verdicts) func(statedb.ReadTxn, []netip.Addr) ([]netip.Addr, func(netip.Addr) []*tables.LocalEndpoint) {
	e := &epochs{epochParams: &l.Epochs, verdicts: v}
	return func(txn statedb.ReadTxn, addrs []netip.Addr) ([]netip.Addr, func(netip.Addr) []*tables.LocalEndpoint) {
		if e.last == 0 {
			e.begin()
		}
		r := e.round(txn, l.inUse)
		addrs = l.affectedByRevocation(txn, r, addrs)
		return addrs, func(addr netip.Addr) []*tables.LocalEndpoint { return l.rows(txn, r, addr) }
	}
}

// affectedAsLocal are the addresses of a local endpoint.
func (l *localParams) affectedAsLocal(_ statedb.ReadTxn, e *tables.Endpoint, affect func(netip.Addr)) {
	if e.Node == l.LocalNode.Name {
		for _, addr := range e.Addrs {
			affect(addr)
		}
	}
}

// affectedByEndpoint are the addresses of a local endpoint, and those of
// another node's that a local one claims too.
func (l *localParams) affectedByEndpoint(txn statedb.ReadTxn, e *tables.Endpoint, affect func(netip.Addr)) {
	for _, addr := range e.Addrs {
		local := e.Node == l.LocalNode.Name
		for claimant := range l.Endpoints.List(txn, tables.EndpointsByAddr(addr)) {
			local = local || claimant.Node == l.LocalNode.Name
		}
		if local {
			affect(addr)
		}
	}
}

// fromMembers is the input of the members that addresses of this node wait for.
func (l *localParams) fromMembers() derive.Input[netip.Addr] {
	in := derive.Where(l.isMemberHere, derive.FromChange(l.Members, l.memberChanged))
	if l.Enforcement == tables.EnforcementNever {
		return in // peers are among them
	}
	return derive.Indexed(tables.AnyButPeers, in)
}

// isMemberHere reports whether a row can be what an address of this node waits for:
// where policies are not enforced, it may be the row as a peer alone that tells that
// no egress policy chooses a pod.
func (l *localParams) isMemberHere(m *tables.ClassMember) bool {
	return m.IsMember() && (m.Role != bpf.RolePeer || l.Enforcement == tables.EnforcementNever && m.IsOfPods())
}

func (l *localParams) affectedByMember(txn statedb.ReadTxn, m *tables.ClassMember, affect func(netip.Addr)) {
	for e := range l.Endpoints.List(txn, tables.EndpointsByLabelSet(m.LabelSet)) {
		if e.Node == l.LocalNode.Name {
			for _, addr := range e.Addrs {
				affect(addr)
			}
		}
	}
}

// affectedByBridge are the addresses whose neighbour has the MAC address, or had
// it when the pod was found.
func (l *localParams) affectedByBridge(txn statedb.ReadTxn, b *tables.BridgeEntry, affect func(netip.Addr)) {
	for n := range l.Neighbours.List(txn, tables.NeighboursByDevice(b.BridgeIndex)) {
		if n.MAC == b.MAC {
			affect(n.Addr)
		}
	}
	for row := range l.Locals.List(txn, tables.LocalEndpointsByDevice(b.BridgeIndex)) {
		if row.MAC == b.MAC {
			affect(row.Addr)
		}
	}
}

// affectedByDevice are the addresses to which the device leads, or led.
func (l *localParams) affectedByDevice(txn statedb.ReadTxn, d *tables.Device, affect func(netip.Addr)) {
	for row := range l.Locals.List(txn, tables.LocalEndpointsByDevice(d.Index)) {
		affect(row.Addr)
	}
	for r := range l.Routes.List(txn, tables.RoutesByDevice(d.Index)) {
		if r.Destination.IsSingleIP() {
			affect(r.Destination.Addr())
		}
	}
	for n := range l.Neighbours.List(txn, tables.NeighboursByDevice(d.Index)) {
		affect(n.Addr)
	}
	for b := range l.Bridges.List(txn, tables.BridgeEntriesByDevice(d.Index)) {
		l.affectedByBridge(txn, b, affect)
	}
	for a := range tables.Rare(txn, l.Attachments, tables.CNIAttachmentsByDevice(d.Index)) {
		l.affectedByAttachment(txn, a, affect)
	}
}

// affectedByAttachment are the addresses of an interface.
func (l *localParams) affectedByAttachment(_ statedb.ReadTxn, a *tables.CNIAttachment, affect func(netip.Addr)) {
	for _, addr := range a.Addrs {
		affect(addr)
	}
}

func (l *localParams) rows(txn statedb.ReadTxn, r *round, addr netip.Addr) []*tables.LocalEndpoint {
	owner, _ := tables.AddrOwner(txn, l.Endpoints, addr)
	existing, _, _ := l.Locals.Get(txn, tables.LocalEndpointByAddr(addr))
	attachment := l.attachmentAt(txn, addr, owner)
	if attachment != nil && (owner == nil || !attachment.IsOf(owner)) {
		return l.unknownPod(txn, r, addr, attachment, existing)
	}
	if owner == nil || owner.Node != l.LocalNode.Name {
		return nil
	}
	row := &tables.LocalEndpoint{Addr: addr, Endpoint: owner.Name, Reconciled: tables.Pending()}
	namespaceUnknown := false
	switch m := tables.MemberOf(txn, l.Members, bpf.RoleEgress, owner); {
	case m == nil:
		row.EgressClass, row.Flags = 0, bpf.PodEgressUnknown
		if existing != nil && existing.Endpoint == owner.Name {
			// It has new labels: until their class is known, it keeps its own.
			row.EgressClass, row.Flags = existing.EgressClass, existing.Flags&egressFlags
		}
	case m.NamespaceUnknown:
		row.Flags, namespaceUnknown = bpf.PodEgressUnknown, true
	case m.Class != 0:
		row.EgressClass = m.Class
		row.Flags |= bpf.PodEgressSelected
	}
	member := l.findSubjectClass(txn, row, existing, owner)
	if !l.findAttached(txn, row, attachment) {
		l.findDevice(txn, row, found(row, existing))
	}
	if row.Reason == "" && (namespaceUnknown || member != nil && member.NamespaceUnknown) {
		row.Reason = fmt.Sprintf("there is no Namespace %s, whose labels policies look at", owner.Namespace)
	}
	r.fill(row, existing)
	return []*tables.LocalEndpoint{row}
}
