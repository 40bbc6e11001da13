// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// Node is a node of the cluster.
type Node struct {
	Name        string         `json:"name"`
	UID         string         `json:"uid,omitempty"`
	Labels      labels.Set     `json:"labels,omitempty"`
	InternalIPs []netip.Addr   `json:"internalIPs,omitempty"` // in the order of the object
	OtherIPs    []netip.Addr   `json:"otherIPs,omitempty"`    // external addresses
	PodCIDRs    []netip.Prefix `json:"podCIDRs,omitempty"`
	TunnelIPs   []netip.Addr   `json:"tunnelIPs,omitempty"` // as Calico notes them: see ipcache
	Ready       bool           `json:"ready"`
	Draining    bool           `json:"draining,omitempty"` // cordoned, or drained as a gateway
	Drain       string         `json:"drain,omitempty"`    // the value of [DrainAnnotation]
	Errors      []FieldError   `json:"errors,omitempty"`

	// Times are for the operator, which chooses nodes by them; nil at an agent.
	Times *NodeTimes `json:"times,omitempty"`
}

// NodeTimes says since when a node is as it is, in UTC. A time that the object lacks is zero.
type NodeTimes struct {
	Created time.Time `json:"created,omitzero"`
	Ready   time.Time `json:"ready,omitzero"` // since when it is ready, or is not
}

// UnderlayIP returns the address by which other nodes reach the node: its
// first internal IPv4 address, or the first IPv6 one where there is no IPv4.
// Invalid if it has none.
func (n *Node) UnderlayIP() netip.Addr {
	for _, a := range n.InternalIPs {
		if a.Is4() {
			return a
		}
	}
	if len(n.InternalIPs) > 0 {
		return n.InternalIPs[0]
	}
	return netip.Addr{}
}

// RunsAgent reports whether the node is one for which deploy/ has an agent.
func (n *Node) RunsAgent() bool {
	system, known := n.Labels["kubernetes.io/os"]
	return !known || system == "linux"
}

// DrainAnnotation has new connections leave by other gateways than the Node that it is on, with any
// value that is not empty, as if the Node were cordoned. Each sluice gateway drain gives it another
// one.
const DrainAnnotation = "sluice.net/drain-gateway"

// TableHeader implements [statedb.TableWritable].
func (*Node) TableHeader() []string {
	return []string{
		"Name", "Ready", "Draining", "InternalIPs", "OtherIPs", "PodCIDRs", "TunnelIPs", "Labels",
		"Errors",
	}
}

// TableRow implements [statedb.TableWritable].
func (n *Node) TableRow() []string {
	return []string{
		n.Name, strconv.FormatBool(n.Ready), trueOrDash(n.Draining),
		listColumn(stringsOf(n.InternalIPs), ", "), listColumn(stringsOf(n.OtherIPs), ", "),
		listColumn(stringsOf(n.PodCIDRs), ", "), listColumn(stringsOf(n.TunnelIPs), ", "),
		orDash(n.Labels.String()), errorColumn(n.Errors),
	}
}

var (
	nodeNameIndex = UniqueIndex("name", StringKeys, func(n *Node) string { return n.Name })

	nodeAddrIndex = IndexEach("addr", AddrKeys,
		func(n *Node) []netip.Addr { return slices.Concat(n.InternalIPs, n.OtherIPs) })

	nodePodCIDRIndex = IndexEach("pod-cidr", PrefixKeys,
		func(n *Node) []netip.Prefix { return n.PodCIDRs })

	nodeTunnelIndex = IndexEach("tunnel", AddrKeys,
		func(n *Node) []netip.Addr { return n.TunnelIPs })

	// NodeByName queries a node by its name.
	NodeByName = nodeNameIndex.Query

	// NodesByAddr queries the nodes that have an address, internal or other.
	NodesByAddr = nodeAddrIndex.Query

	// NodesByTunnelAddr queries the nodes whose tunnels have an address.
	NodesByTunnelAddr = nodeTunnelIndex.Query

	// NodesByPodCIDR queries the nodes to which a pod prefix is assigned.
	NodesByPodCIDR = nodePodCIDRIndex.Query
)

// NewNodeTable creates the table of nodes.
var NewNodeTable = Declare("nodes", nodeNameIndex, nodeAddrIndex, nodePodCIDRIndex, nodeTunnelIndex)
