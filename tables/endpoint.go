// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/statedb"
)

// Endpoint is a pod with addresses of its own, on any node. Pods of the host
// network and pods that have ended are no endpoints.
type Endpoint struct {
	Name `yaml:",inline"`

	UID  string `json:"uid,omitempty"`
	Node string `json:"node"`

	// MirrorOf is the UID by which the kubelet knows a static pod, of which the
	// object is a mirror.
	MirrorOf string `json:"mirrorOf,omitempty"`

	// Addrs are the pod's addresses, the primary one first. Another endpoint
	// may claim one of them too: the address then belongs to the one created
	// last, see [Endpoint.Newer].
	Addrs []netip.Addr `json:"addrs"`

	Created time.Time `json:"created"`

	// Attached is when the CNI plugin reported the pod's interface, zero if it did not. Announced
	// is set if the agent of the pod's node, another one, announces its addresses. With either,
	// Addrs are those of the interface, and StatusAddrs those of the object's status, which come
	// later.
	Attached    time.Time    `json:"attached,omitzero"`
	Announced   bool         `json:"announced,omitempty"`
	StatusAddrs []netip.Addr `json:"statusAddrs,omitempty"`

	// LabelSet is what selectors see of the endpoint. It is never nil; endpoints that
	// have the same one may share it.
	LabelSet *LabelSet `json:"labelSet"`

	HostPorts []HostPort `json:"hostPorts,omitempty"`

	Errors []FieldError `json:"errors,omitempty"`
}

// HostPort is a port of the node that a plugin of its CNI translates to a pod.
type HostPort struct {
	Addr          netip.Addr `json:"addr,omitzero"` // of the node; invalid: any, unspecified: any of its family
	Protocol      uint8      `json:"protocol"`      // IP protocol number
	Port          uint16     `json:"port"`
	ContainerPort uint16     `json:"containerPort"`
}

// Newer reports whether an address that both endpoints claim belongs to e: its
// interface was made later, or it has the address by a new interface that its status
// does not know yet, or it was created later, or at the same time and its name sorts
// first.
func (e *Endpoint) Newer(o *Endpoint) bool {
	if !e.Attached.Equal(o.Attached) {
		return e.Attached.After(o.Attached)
	}
	if e.readdressed() != o.readdressed() {
		return e.readdressed()
	}
	if !e.Created.Equal(o.Created) {
		return e.Created.After(o.Created)
	}
	return e.Name.String() < o.Name.String()
}

// readdressed reports whether the addresses are announced of a pod whose status has
// former ones.
func (e *Endpoint) readdressed() bool { return e.Announced && len(e.StatusAddrs) > 0 }

// SameClaim reports whether two rows of an endpoint claim the same addresses, and
// with the same right.
func (e *Endpoint) SameClaim(o *Endpoint) bool {
	return e.Attached.Equal(o.Attached) && e.readdressed() == o.readdressed() &&
		e.Created.Equal(o.Created) && slices.Equal(e.Addrs, o.Addrs)
}

// InStatus returns the addresses of the object's status.
func (e *Endpoint) InStatus() []netip.Addr {
	if e.Attached.IsZero() && !e.Announced {
		return e.Addrs
	}
	return e.StatusAddrs
}

// WithAttachment returns the endpoint with the addresses of its interfaces and the time
// when they were made, or without any with those of its status. Addresses that the
// status has come first, in its order. It is the same endpoint if nothing changes.
func (e *Endpoint) WithAttachment(addrs []netip.Addr, made time.Time) *Endpoint {
	if len(addrs) == 0 {
		return e.with(nil, time.Time{}, false)
	}
	var ordered []netip.Addr
	for _, addr := range slices.Concat(e.InStatus(), addrs) {
		if slices.Contains(addrs, addr) && !slices.Contains(ordered, addr) {
			ordered = append(ordered, addr)
		}
	}
	return e.with(ordered, made, false)
}

// WithAnnounced returns the endpoint with the addresses that the agent of its node
// announces, or without any with those of its status. It is the same endpoint if
// nothing changes.
func (e *Endpoint) WithAnnounced(addrs []netip.Addr) *Endpoint {
	return e.with(addrs, time.Time{}, len(addrs) > 0)
}

func (e *Endpoint) with(addrs []netip.Addr, attached time.Time, announced bool) *Endpoint {
	with := *e
	with.Addrs, with.StatusAddrs = addrs, e.InStatus()
	if with.Attached, with.Announced = attached, announced; attached.IsZero() && !announced {
		with.Addrs, with.StatusAddrs = e.InStatus(), nil
	}
	if with.SameClaim(e) && with.Announced == e.Announced &&
		slices.Equal(with.StatusAddrs, e.StatusAddrs) {
		return e
	}
	return &with
}

// TableHeader implements [statedb.TableWritable].
func (*Endpoint) TableHeader() []string {
	return []string{"Name", "Node", "Addresses", "ServiceAccount", "Labels", "LabelSet", "Errors"}
}

// TableRow implements [statedb.TableWritable].
func (e *Endpoint) TableRow() []string {
	return []string{
		e.Name.String(), orDash(e.Node), listColumn(stringsOf(e.Addrs), ", "),
		orDash(e.LabelSet.ServiceAccount),
		orDash(e.LabelSet.Labels.String()), e.LabelSet.ID.String()[:8], errorColumn(e.Errors),
	}
}

var (
	endpointNameIndex = UniqueIndex("name", NameKeys, func(e *Endpoint) Name { return e.Name })

	endpointAddrIndex = IndexEach("addr", ShortAddrKeys,
		func(e *Endpoint) []netip.Addr { return e.Addrs })

	endpointHostPortIndex = IndexEach("host-port", IntKeys, func(e *Endpoint) (ports []int) {
		for _, p := range e.HostPorts {
			ports = append(ports, int(p.Port))
		}
		return ports
	})

	endpointHostPortsAtIndex = IndexIf("host-ports-at", StringKeys,
		func(e *Endpoint) (string, bool) { return e.Node, len(e.HostPorts) > 0 })

	// EndpointsByHostPort queries the endpoints to which a port of their node leads.
	EndpointsByHostPort = endpointHostPortIndex.Query

	// EndpointsWithHostPorts queries the endpoints of a node to which ports of it lead.
	EndpointsWithHostPorts = endpointHostPortsAtIndex.Query

	// EndpointByName queries an endpoint by its namespaced name.
	EndpointByName = endpointNameIndex.Query

	// EndpointsByAddr queries the endpoints that claim an address.
	EndpointsByAddr = endpointAddrIndex.Query
)

// EndpointsOfNamespace queries, with Prefix, the endpoints of a namespace.
func EndpointsOfNamespace(namespace string) statedb.Query[*Endpoint] {
	return endpointNameIndex.Query(Name{Namespace: namespace})
}

// EndpointsHere queries the endpoints of the node that the agent runs on.
func EndpointsHere() statedb.Query[*Endpoint] { return endpointHereIndex(LocalNode{}).Query(true) }

// Only pods of this node: all others are many, and rarely looked up by node.
func endpointHereIndex(local LocalNode) statedb.Index[*Endpoint, bool] {
	return IndexIf("here", BoolKeys,
		func(e *Endpoint) (here, has bool) { return true, e.Node == local.Name })
}

// NewEndpointTable creates the table of endpoints.
func NewEndpointTable(db *statedb.DB, local LocalNode) (statedb.RWTable[*Endpoint], error) {
	return statedb.NewTable(
		db, "endpoints", endpointNameIndex, endpointAddrIndex, endpointHereIndex(local),
		endpointHostPortIndex, endpointHostPortsAtIndex,
	)
}

// AddrOwner returns the endpoint that an address belongs to, nil if none, and
// the others that claim it.
func AddrOwner(
	txn statedb.ReadTxn, endpoints statedb.Table[*Endpoint], addr netip.Addr,
) (owner *Endpoint, others []*Endpoint) {
	for e := range endpoints.List(txn, EndpointsByAddr(addr)) {
		switch {
		case owner == nil:
			owner = e
		case e.Newer(owner):
			owner, others = e, append(others, owner)
		default:
			others = append(others, e)
		}
	}
	return owner, others
}
