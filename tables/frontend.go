// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// FrontendID is the primary key of a [Frontend].
type FrontendID struct {
	// Addr is unspecified for a port of any node, and the loopback address for one of any
	// address of this node: see [bpf.AnyNode] and [bpf.ThisHost].
	Addr     netip.Addr `json:"addr"`
	Protocol uint8      `json:"protocol"` // IP protocol number
	Port     uint16     `json:"port"`
}

// Key is the key in sluice_services.
func (f FrontendID) Key() bpf.FrontendKey {
	return bpf.FrontendKeyFrom(f.Addr, f.Protocol, f.Port)
}

// Frontend is a port that kube-proxy translates to a backend, beside those of cluster addresses: of
// an external or load balancer address, of all nodes, or one that a CNI plugin translates. An entry
// of sluice_services.
type Frontend struct {
	FrontendID `yaml:",inline"`

	// Origins are the services and pods that it leads to, sorted.
	Origins []string `json:"origins"`

	// Namespace is the one whose pods rely on the translation: they are judged by where it
	// leads alone. Empty: all pods do, or if Disputed, none: services of several namespaces
	// claim the address, and it is not known which of them kube-proxy chooses.
	Namespace string `json:"namespace,omitempty"`
	Disputed  bool   `json:"disputed,omitempty"`

	// AtNode says that the node that has the address translates it. Backends are where to,
	// those outside the cluster first: of pods with the same labels there is one. More says
	// that there are others.
	AtNode   bool             `json:"atNode,omitempty"`
	Backends []netip.AddrPort `json:"backends,omitempty"`
	More     bool             `json:"more,omitempty"`

	// Share is the namespace in whose share of sluice_services it counts, of one of its origins.
	Share string `json:"-" yaml:"-"`

	// Refused says that there is no room for it in sluice_services, or that its namespace has its
	// share. Then it has no entry, and packets to it are judged by their destination.
	Refused bool `json:"refused,omitempty"`

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (f *Frontend) Equal(o *Frontend) bool {
	return f.FrontendID == o.FrontendID && slices.Equal(f.Origins, o.Origins) &&
		f.Share == o.Share && f.Refused == o.Refused && f.MapValue() == o.MapValue()
}

// MapKey is the key in sluice_services.
func (f *Frontend) MapKey() bpf.FrontendKey { return f.Key() }

// MapValue is the value in sluice_services.
func (f *Frontend) MapValue() bpf.FrontendValue {
	v := bpf.FrontendValue{Namespace: bpf.AllNamespaces, Count: uint32(len(f.Backends))}
	switch {
	case f.Disputed:
		v.Namespace = bpf.NoNamespace
	case f.Namespace != "":
		v.Namespace = bpf.NamespaceDigest(f.Namespace)
	}
	if f.AtNode {
		v.Flags |= bpf.FrontendAtNode
	}
	if f.More {
		v.Flags |= bpf.FrontendMore
	}
	for i, b := range f.Backends {
		v.Backends[i] = bpf.FrontendBackendFrom(b)
	}
	return v
}

// TableHeader implements [statedb.TableWritable].
func (*Frontend) TableHeader() []string {
	return []string{"Frontend", "Origins", "Namespace", "Backends", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (f *Frontend) TableRow() []string {
	namespace, backends := orDash(f.Namespace), listColumn(stringsOf(f.Backends), ", ")
	if f.Disputed {
		namespace = "disputed"
	}
	if f.More {
		backends += ", ..."
	}
	return []string{
		f.Key().String(), listColumn(f.Origins, ", "), namespace, backends,
		f.Status.Kind.String(), orDash(f.Status.GetError()),
	}
}

var (
	frontendIndex = UniqueIndex("frontend", KeysOf(keyBytes[bpf.FrontendKey], hexKey),
		func(f *Frontend) bpf.FrontendKey { return f.Key() })

	frontendOrigin = IndexEach("origin", StringKeys,
		func(f *Frontend) []string { return f.Origins })

	// FrontendsByOrigin queries the frontends that lead to a service or a pod.
	FrontendsByOrigin = frontendOrigin.Query

	// FrontendByKey queries the frontend with a key of the map.
	FrontendByKey = frontendIndex.Query
)

// FrontendByID queries the frontend at an address and port.
func FrontendByID(id FrontendID) statedb.Query[*Frontend] { return frontendIndex.Query(id.Key()) }

// NewFrontendTable creates the table of frontends.
var NewFrontendTable = Declare("frontends", frontendIndex, frontendOrigin)
