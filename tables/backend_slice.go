// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"
)

// KubernetesAPIService is the service behind which the API servers are.
var KubernetesAPIService = Name{Namespace: "default", Name: "kubernetes"}

// BackendSlice is an EndpointSlice: some of the backends of a service. Slices that agents write
// announce pods and addresses of a node, and are of no service.
type BackendSlice struct {
	Name    `yaml:",inline"`
	Service Name          `json:"service"`
	Addrs   []netip.Addr  `json:"addrs,omitempty"`
	Ports   []BackendPort `json:"ports,omitempty"` // of all its backends, pods too

	// PodAddrs are those that the slice says are of pods. Its author may say so of any.
	PodAddrs []netip.Addr `json:"podAddrs,omitempty"`

	Pods []PodAddrs `json:"pods,omitempty"` // that the slice announces
	Node NodeAddrs  `json:"node,omitzero"`  // the same

	// Serves is the family of the backends if kube-proxy translates to one of them, pods too:
	// one is ready, or serves while it terminates. 0 if not.
	Serves uint8 `json:"serves,omitempty"`

	Errors []FieldError `json:"errors,omitempty"`
}

// NodeAddrs are addresses that a node has and its Node object has not. There are none if the name
// is empty.
type NodeAddrs struct {
	Name  string       `json:"name"`
	Addrs []netip.Addr `json:"addrs"`
}

// Equal reports whether two rows say the same.
func (n NodeAddrs) Equal(o NodeAddrs) bool {
	return n.Name == o.Name && slices.Equal(n.Addrs, o.Addrs)
}

// IsZero reports whether there are none.
func (n NodeAddrs) IsZero() bool { return n.Name == "" }

func (n NodeAddrs) String() string {
	if n.IsZero() {
		return "-"
	}
	return n.Name + " " + listColumn(stringsOf(n.Addrs), ", ")
}

// TableHeader implements [statedb.TableWritable].
func (*BackendSlice) TableHeader() []string {
	return []string{"Name", "Service", "Addresses", "Ports", "Serves", "Pods", "Node", "Errors"}
}

// TableRow implements [statedb.TableWritable].
func (b *BackendSlice) TableRow() []string {
	return []string{
		b.Name.String(), b.Service.String(), listColumn(stringsOf(b.Addrs), ", "), listColumn(stringsOf(b.Ports), ", "),
		b.serves(), listColumn(stringsOf(b.Pods), ", "), b.Node.String(), errorColumn(b.Errors),
	}
}

func (b *BackendSlice) serves() string {
	if b.Serves == 0 {
		return "-"
	}
	return fmt.Sprintf("IPv%d", b.Serves)
}

// DifferentBackends reports whether an update of a slice changes whose backends it has,
// or which: its ports alone matter to nothing that is derived.
func DifferentBackends(old, new *BackendSlice) bool {
	return old.Service != new.Service || !slices.Equal(old.Addrs, new.Addrs) ||
		!old.Node.Equal(new.Node)
}

var (
	backendSliceNameIndex = UniqueIndex("name", NameKeys,
		func(b *BackendSlice) Name { return b.Name })

	backendSliceAddrIndex = IndexEach("addr", AddrKeys,
		func(b *BackendSlice) []netip.Addr { return b.Addrs })

	backendSliceServiceIndex = Index("service", NameKeys,
		func(b *BackendSlice) Name { return b.Service })

	backendSlicePodIndex = IndexEach("pod", NameKeys, func(b *BackendSlice) []Name {
		pods := make([]Name, len(b.Pods))
		for i, p := range b.Pods {
			pods[i] = p.Pod
		}
		return pods
	})

	backendSliceNodeAddrIndex = IndexEach("node-addr", AddrKeys,
		func(b *BackendSlice) []netip.Addr { return b.Node.Addrs })

	// BackendSlicesByNodeAddr queries the slices that announce an address of a node.
	BackendSlicesByNodeAddr = backendSliceNodeAddrIndex.Query

	// BackendSlicesByService queries the slices of a service.
	BackendSlicesByService = backendSliceServiceIndex.Query

	// BackendSliceByName queries a slice by its namespaced name.
	BackendSliceByName = backendSliceNameIndex.Query

	// BackendSlicesByAddr queries the slices that list an address.
	BackendSlicesByAddr = backendSliceAddrIndex.Query

	// BackendSlicesByPod queries the slices that announce a pod.
	BackendSlicesByPod = backendSlicePodIndex.Query
)

// NewBackendSliceTable creates the table of backend slices.
var NewBackendSliceTable = Declare(
	"backend-slices", backendSliceNameIndex, backendSliceAddrIndex, backendSliceServiceIndex,
	backendSlicePodIndex, backendSliceNodeAddrIndex,
)
