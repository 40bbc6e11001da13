// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"
)

// What EndpointSlices that announce pods have, beside the pods and their addresses.
const (
	// LabelManagedBy says who writes a slice: [ManagedByAgents] if it announces pods.
	LabelManagedBy  = "endpointslice.kubernetes.io/managed-by"
	ManagedByAgents = "sluice.net"

	// AnnotationStatusAddrs has the StatusAddrs of pods by their UIDs, in JSON.
	AnnotationStatusAddrs = "sluice.net/status-addresses"
)

// PodAddrs are addresses that the agent of a pod's node announces to the agents of
// other nodes, before the status of the pod has them.
type PodAddrs struct {
	Pod   Name         `json:"pod"`
	UID   string       `json:"uid"`
	Node  string       `json:"node"`
	Addrs []netip.Addr `json:"addrs"`

	// StatusAddrs are those of the status when the pod was announced: none of a new pod,
	// the former ones of a pod whose sandbox was made anew. The announcement counts only
	// while the status has them: any other status is later, in whatever order an agent sees them.
	StatusAddrs []netip.Addr `json:"statusAddrs,omitempty"`
}

// String returns the form "namespace/name=addresses (status addresses)".
func (p PodAddrs) String() string {
	s := fmt.Sprintf("%s=%s", p.Pod, strings.Join(stringsOf(p.Addrs), "+"))
	if len(p.StatusAddrs) > 0 {
		s += fmt.Sprintf(" (status %s)", strings.Join(stringsOf(p.StatusAddrs), "+"))
	}
	return s
}

// Equal reports whether two announcements say the same.
func (p PodAddrs) Equal(o PodAddrs) bool {
	return p.Pod == o.Pod && p.UID == o.UID && p.Node == o.Node &&
		slices.Equal(p.Addrs, o.Addrs) && slices.Equal(p.StatusAddrs, o.StatusAddrs)
}

// Counts reports whether the announcement counts for its pod, by the status that this
// has now.
func (p PodAddrs) Counts(e *Endpoint) bool { return slices.Equal(p.StatusAddrs, e.InStatus()) }

// isOf reports whether the announcement is of this pod, not of another one of its
// name, and claims that the pod is on the node that it is bound to.
func (p PodAddrs) isOf(e *Endpoint) bool {
	return p.Pod == e.Name && p.UID != "" && p.UID == e.UID && p.Node != "" && p.Node == e.Node
}

// AnnouncedAddrs returns the addresses of a pod that agents announce and that count, as
// its status has not come since. Only agents can write slices in their namespace; those
// of other namespaces count for nothing.
func AnnouncedAddrs(
	txn statedb.ReadTxn, backends statedb.Table[*BackendSlice], agents AgentNamespace, e *Endpoint,
) (addrs []netip.Addr) {
	for slice := range ListIfAny(txn, backends, BackendSlicesByPod(e.Name)) {
		if slice.Namespace != string(agents) {
			continue
		}
		for _, p := range slice.Pods {
			if p.isOf(e) && p.Counts(e) {
				addrs = append(addrs, p.Addrs...)
			}
		}
	}
	return addrs
}
