// SPDX-License-Identifier: Apache-2.0

package members

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// inputs are the tables with what a change of them marks. Whatever is computed anew anyway
// need not be marked, as all keys are computed from the newest snapshot.
func (r *rule) inputs() []derive.Input[key] {
	return []derive.Input[key]{
		derive.FromIf(r.Endpoints, movesPeer,
			func(_ statedb.ReadTxn, e *tables.Endpoint, mark func(key)) { markAll(e.Addrs, mark) }),
		derive.FromChange(r.Nodes, r.nodeChanged),
		derive.From(
			r.CiliumNodes,
			func(_ statedb.ReadTxn, n *tables.CiliumNode, mark func(key)) { markAll(n.Addrs, mark) },
		),
		derive.FromIf(r.Services,
			func(old, new *tables.Service) bool { return !slices.Equal(old.Addrs, new.Addrs) },
			func(_ statedb.ReadTxn, s *tables.Service, mark func(key)) { markAll(s.Addrs, mark) }),
		derive.FromIf(r.Backends, tables.DifferentBackends,
			func(_ statedb.ReadTxn, b *tables.BackendSlice, mark func(key)) {
				if isOfAPIServer(b) {
					markAll(b.Addrs, mark)
				}
				markAll(b.Node.Addrs, mark)
			}),
		derive.From(r.Addresses, func(_ statedb.ReadTxn, a *tables.NodeAddress, mark func(key)) {
			mark(addressKey(single(a.Addr)))
		}),
		derive.From(r.Routes, func(txn statedb.ReadTxn, route *tables.Route, mark func(key)) {
			if route.Table == tables.RouteTableLocal {
				mark(addressKey(route.Destination.Masked()))
				r.markInheriting(txn, route.Destination, mark)
			}
		}),

		// An address leaves a member before the labels of that change.
		derive.FromIf(r.Nodes,
			func(old, new *tables.Node) bool { return !maps.Equal(old.Labels, new.Labels) },
			func(txn statedb.ReadTxn, n *tables.Node, mark func(key)) {
				for m := range r.Members.List(txn, tables.MembersByNode(n.Name)) {
					mark(key{kind: ofRelabeled, number: m.Number})
				}
			}),
		derive.FromIf(r.Namespaces,
			func(old, new *tables.Namespace) bool { return !maps.Equal(old.Labels, new.Labels) },
			func(txn statedb.ReadTxn, n *tables.Namespace, mark func(key)) {
				for m := range r.Members.Prefix(txn, tables.MembersOfNamespace(n.Name)) {
					mark(key{kind: ofRelabeled, number: m.Number})
				}
			}),
		derive.FromChange(r.Rulesets, r.rulesetChanged),
		derive.FromChange(r.Selectors, r.selectorChanged),

		// What the kernel refers to no more may end.
		derive.Feedback(derive.FromChange(r.IPCacheMirror,
			func(txn statedb.ReadTxn, old, _ *tables.IPCacheMirror, mark func(key)) {
				for _, v := range valuesOf(old) {
					if m, _, found := r.Members.Get(txn, tables.MemberByNumber(v.Member)); found && m.Undesired {
						mark(memberKey(m.Number))
					}
				}
			})),
		derive.Feedback(derive.FromChange(r.PeerMirror,
			func(txn statedb.ReadTxn, old, _ *tables.PeerMirror, mark func(key)) {
				for _, v := range valuesOf(old) {
					if c, _, found := r.Classes.Get(txn, tables.ClassByNumber(v.Class)); found && c.Undesired {
						mark(classKey(c.Number))
					}
				}
			})),
	}
}

// valuesOf returns what a mirror row refers to, nothing if there is no row.
func valuesOf[K, V tables.MapPart](m *tables.Mirror[K, V]) []V {
	if m == nil {
		return nil
	}
	return m.Values()
}

func markAll(addrs []netip.Addr, mark func(key)) {
	for _, a := range addrs {
		mark(addressKey(single(a)))
	}
}

func isOfAPIServer(b *tables.BackendSlice) bool { return b.Service == tables.KubernetesAPIService }

// movesPeer reports whether a change of an endpoint can change the row of its addresses.
func movesPeer(old, new *tables.Endpoint) bool {
	return old.LabelSet.ID != new.LabelSet.ID || old.Node != new.Node || !old.SameClaim(new)
}

// nodeChanged marks the node's own addresses and prefixes, and the addresses of its pods if its
// tunnel address changes.
func (r *rule) nodeChanged(txn statedb.ReadTxn, old, new *tables.Node, mark func(key)) {
	if old != nil && new != nil && !movesNode(old, new) {
		return
	}
	reached := func(n *tables.Node) (by netip.Addr) {
		if n == nil {
			return by
		}
		markAll(slices.Concat(n.InternalIPs, n.OtherIPs, n.TunnelIPs), mark)
		for _, p := range n.PodCIDRs {
			mark(prefixKey(p.Masked()))
			r.markInheriting(txn, p, mark)
		}
		return n.UnderlayIP()
	}
	if by := reached(new); reached(old) != by {
		for _, n := range []*tables.Node{old, new} {
			if n != nil {
				mark(key{kind: ofPods, name: n.Name})
			}
		}
	}
}

func movesNode(old, new *tables.Node) bool {
	return !slices.Equal(old.InternalIPs, new.InternalIPs) ||
		!slices.Equal(old.OtherIPs, new.OtherIPs) || !slices.Equal(old.PodCIDRs, new.PodCIDRs) ||
		!slices.Equal(old.TunnelIPs, new.TunnelIPs)
}

// markInheriting marks the prefixes that inherit facts of a prefix around them.
func (r *rule) markInheriting(txn statedb.ReadTxn, prefix netip.Prefix, mark func(key)) {
	if prefix.IsSingleIP() {
		return
	}
	for row := range tables.IPCacheWithin(txn, r.IPCache, prefix) {
		if row.Inherits {
			mark(addressKey(row.Prefix))
		}
	}
}

// rulesetChanged marks the names of ports that a ruleset begins or ceases to use: many rulesets
// with the same names come at once.
func (r *rule) rulesetChanged(_ statedb.ReadTxn, old, new *tables.Ruleset, mark func(key)) {
	if old != nil && new != nil {
		return // its rules do not change
	}
	for _, name := range cmp.Or(new, old).PeerPorts() {
		mark(key{kind: ofPort, name: name})
	}
}

// port marks the members whose classes have numbers for the name of a port and should not, or the
// other way around, some at a time.
func (t *transaction) port(k key) {
	_, _, used := t.Rulesets.Get(t.in, tables.RulesetsByPort(k.name))
	skipped := 0
	for m := range t.Members.LowerBound(t.out, tables.MemberByNumber(k.after+1)) {
		if t.isFull() {
			t.mark(k)
			return
		}
		if skipped++; skipped%skippedPerWork == 0 {
			t.work++
		}
		k.after = m.Number
		if m.Labels != nil && slices.ContainsFunc(m.Labels.NamedPorts, func(p tables.NamedPort) bool {
			return p.NameText() == k.name && t.hasPort(t.out, m, p) != used
		}) {
			t.mark(memberKey(m.Number))
		}
	}
}

func (r *rule) hasPort(txn statedb.ReadTxn, m *tables.Member, port tables.NamedPort) bool {
	class, _, found := r.Classes.Get(txn, tables.ClassByNumber(m.Class))
	return found && slices.Contains(class.Ports, port)
}
