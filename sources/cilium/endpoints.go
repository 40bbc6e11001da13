// SPDX-License-Identifier: Apache-2.0

// Package cilium derives the endpoints from what Cilium tells about them:
//
//	cilium-endpoints ─┐
//	identities ───────┼──► endpoints
//	nodes ────────────┤
//	cilium-nodes ─────┘
//
// With another endpoint source it does nothing: Pods are then the endpoints.
package cilium

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// Cell derives the endpoints, if Cilium is their source.
var Cell = cell.Module("cilium", "Endpoints told by Cilium", cell.Invoke(register))

func register(cfg objects.Config, p derive.Params, t objects.Tables) error {
	if cfg.EndpointSource != objects.EndpointsCilium {
		return nil
	}
	return derive.Register(p, rule(t))
}

func rule(t objects.Tables) derive.Rule[tables.Name] {
	j := joiner{t, &objects.Interner{}}
	return derive.Rule[tables.Name]{
		Outputs: []statedb.TableMeta{t.Endpoints},
		Inputs: []derive.Input[tables.Name]{
			derive.From(
				t.CiliumEndpoints,
				func(_ statedb.ReadTxn, e *tables.CiliumEndpoint, mark func(tables.Name)) { mark(e.Name) },
			),
			derive.From(t.Identities, func(txn statedb.ReadTxn, i *tables.Identity, mark func(tables.Name)) {
				for e := range t.CiliumEndpoints.List(txn, tables.CiliumEndpointsByIdentity(i.ID)) {
					mark(e.Name)
				}
			}),
			derive.FromIf(t.Nodes,
				func(old, new *tables.Node) bool {
					return !slices.Equal(old.InternalIPs, new.InternalIPs) ||
						!slices.Equal(old.OtherIPs, new.OtherIPs)
				},
				func(txn statedb.ReadTxn, n *tables.Node, mark func(tables.Name)) {
					j.onNode(txn, n.InternalIPs, mark)
					j.onNode(txn, n.OtherIPs, mark)
				}),
			derive.From(t.CiliumNodes, func(
				txn statedb.ReadTxn, n *tables.CiliumNode, mark func(tables.Name),
			) {
				j.onNode(txn, n.Addrs, mark)
			}),
		},
		Compute: derive.Each(j.Endpoints, tables.EndpointByName, objects.EqualEndpoints, j.row),
	}
}

type joiner struct {
	objects.Tables
	interner *objects.Interner
}

// onNode marks the endpoints that name one of a node's addresses.
func (j joiner) onNode(txn statedb.ReadTxn, addrs []netip.Addr, mark func(tables.Name)) {
	for _, a := range addrs {
		for e := range j.CiliumEndpoints.List(txn, tables.CiliumEndpointsByNodeIP(a)) {
			mark(e.Name)
		}
	}
}

// row returns the endpoint with a name, nil if there is none. One that cannot be used, or of
// which the labels are not known, is a row that says so and claims no address.
func (j joiner) row(txn statedb.ReadTxn, name tables.Name) *tables.Endpoint {
	found := statedb.Collect(j.CiliumEndpoints.List(txn, tables.CiliumEndpointsByName(name)))
	if len(found) == 0 {
		return nil
	}
	// While an endpoint moves between slices it is in two. The CiliumEndpoint
	// says it first, having no slice.
	best := slices.MinFunc(found, func(a, b *tables.CiliumEndpoint) int {
		if usable(a) != usable(b) {
			if usable(a) {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Slice, b.Slice)
	})
	e := &tables.Endpoint{
		Name:    name,
		UID:     best.UID,
		Node:    j.node(txn, best.NodeIP),
		Created: best.Created,
		Errors:  slices.Clone(best.Errors),
	}
	if e.Node == "" && best.NodeIP.IsValid() {
		e.Errors = append(e.Errors, tables.FieldError{
			Field: "networking.node", Reason: best.NodeIP.String() + " is the address of no node",
		})
	}
	set := j.interner.LabelSet(name.Namespace, "", nil, nil)
	if usable(best) {
		if identity, problem := j.identity(txn, best); problem != "" {
			e.Errors = append(e.Errors, tables.FieldError{Field: "identity", Reason: problem})
		} else {
			e.Addrs = best.Addrs
			set = j.interner.LabelSet(
				name.Namespace, identity.ServiceAccount, identity.Labels, best.NamedPorts,
			)
		}
	}
	e.LabelSet = set
	return e
}

// usable reports whether Cilium has given all that an endpoint needs.
// Slices leave the UID out.
func usable(e *tables.CiliumEndpoint) bool {
	return e.Identity != 0 && len(e.Addrs) > 0 && e.NodeIP.IsValid() && (e.UID != "" || e.Slice != "")
}

// identity returns the identity of an endpoint, or why it cannot be used.
func (j joiner) identity(txn statedb.ReadTxn, e *tables.CiliumEndpoint) (*tables.Identity, string) {
	id := strconv.FormatUint(uint64(e.Identity), 10)
	switch i, _, found := j.Identities.Get(txn, tables.IdentityByID(e.Identity)); {
	case !found:
		return nil, "there is no CiliumIdentity " + id
	case len(i.Errors) > 0:
		return nil, "CiliumIdentity " + id + ": " + i.Errors[0].Error()
	case i.Namespace != e.Namespace:
		return nil, "CiliumIdentity " + id + " is of namespace " + i.Namespace
	default:
		return i, ""
	}
}

// node returns the name of the node that has an address, the first by name if
// several claim it; empty if none does.
func (j joiner) node(txn statedb.ReadTxn, addr netip.Addr) string {
	var names []string
	for n := range j.Nodes.List(txn, tables.NodesByAddr(addr)) {
		names = append(names, n.Name)
	}
	if len(names) == 0 {
		for n := range j.CiliumNodes.List(txn, tables.CiliumNodesByAddr(addr)) {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}
