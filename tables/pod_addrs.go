// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"
)

// LabelManagedBy says who writes an EndpointSlice: [ManagedByAgents] if it announces
// pods.
const (
	LabelManagedBy  = "endpointslice.kubernetes.io/managed-by"
	ManagedByAgents = "sluice.net"
)

// PodAddrs are addresses that the agent of a pod's node announces to the agents of
// other nodes, before the status of the pod has them.
type PodAddrs struct {
	Pod   Name         `json:"pod"`
	UID   string       `json:"uid"`
	Node  string       `json:"node"`
	Addrs []netip.Addr `json:"addrs"`
}

// String returns the form "namespace/name=addresses".
func (p PodAddrs) String() string {
	return fmt.Sprintf("%s=%s", p.Pod, strings.Join(stringsOf(p.Addrs), "+"))
}

// Equal reports whether two announcements say the same.
func (p PodAddrs) Equal(o PodAddrs) bool {
	return p.Pod == o.Pod && p.UID == o.UID && p.Node == o.Node && slices.Equal(p.Addrs, o.Addrs)
}

// isOf reports whether the announcement is of this pod, not of another one of its
// name, and claims that the pod is on the node that it is bound to.
func (p PodAddrs) isOf(e *Endpoint) bool {
	return p.Pod == e.Name && p.UID != "" && p.UID == e.UID && p.Node != "" && p.Node == e.Node
}

// AnnouncedAddrs returns the addresses of a pod that agents announce. Only they can
// write slices in their namespace; those of other namespaces count for nothing.
func AnnouncedAddrs(
	txn statedb.ReadTxn, backends statedb.Table[*BackendSlice], agents AgentNamespace, e *Endpoint,
) (addrs []netip.Addr) {
	for slice := range Rare(txn, backends, BackendSlicesByPod(e.Name)) {
		if slice.Namespace != string(agents) {
			continue
		}
		for _, p := range slice.Pods {
			if p.isOf(e) {
				addrs = append(addrs, p.Addrs...)
			}
		}
	}
	return addrs
}
