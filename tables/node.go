// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
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
	Errors      []FieldError   `json:"errors,omitempty"`
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

// TableHeader implements [statedb.TableWritable].
func (*Node) TableHeader() []string {
	return []string{
		"Name", "Ready", "InternalIPs", "OtherIPs", "PodCIDRs", "TunnelIPs", "Labels", "Errors",
	}
}

// TableRow implements [statedb.TableWritable].
func (n *Node) TableRow() []string {
	return []string{
		n.Name, strconv.FormatBool(n.Ready), listColumn(stringsOf(n.InternalIPs), ", "), listColumn(stringsOf(n.OtherIPs), ", "),
		listColumn(stringsOf(n.PodCIDRs), ", "), listColumn(stringsOf(n.TunnelIPs), ", "),
		orDash(n.Labels.String()), errorColumn(n.Errors),
	}
}

var (
	nodeNameIndex = statedb.Index[*Node, string]{
		Name:       "name",
		FromObject: func(n *Node) index.KeySet { return index.NewKeySet(index.String(n.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}

	nodeAddrIndex = statedb.Index[*Node, netip.Addr]{
		Name: "addr",
		FromObject: func(n *Node) index.KeySet {
			return addrKeys(append(append([]netip.Addr{}, n.InternalIPs...), n.OtherIPs...))
		},
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
	}

	nodePodCIDRIndex = statedb.Index[*Node, netip.Prefix]{
		Name:       "pod-cidr",
		FromObject: func(n *Node) index.KeySet { return prefixKeys(n.PodCIDRs) },
		FromKey:    index.NetIPPrefix,
		FromString: index.NetIPPrefixString,
	}

	nodeTunnelIndex = statedb.Index[*Node, netip.Addr]{
		Name:       "tunnel",
		FromObject: func(n *Node) index.KeySet { return addrKeys(n.TunnelIPs) },
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
	}

	// NodeByName queries a node by its name.
	NodeByName = nodeNameIndex.Query

	// NodesByAddr queries the nodes that have an address, internal or other.
	NodesByAddr = nodeAddrIndex.Query

	// NodesByTunnelAddr queries the nodes whose tunnels have an address.
	NodesByTunnelAddr = nodeTunnelIndex.Query

	// NodesByPodCIDR queries the nodes to which a pod prefix is assigned.
	NodesByPodCIDR = nodePodCIDRIndex.Query
)

func prefixKeys(prefixes []netip.Prefix) index.KeySet {
	keys := make([]index.Key, len(prefixes))
	for i, p := range prefixes {
		keys[i] = index.NetIPPrefix(p)
	}
	return index.NewKeySet(keys...)
}

// NewNodeTable creates the table of nodes.
func NewNodeTable(db *statedb.DB) (statedb.RWTable[*Node], error) {
	return statedb.NewTable(db, "nodes",
		nodeNameIndex, nodeAddrIndex, nodePodCIDRIndex, nodeTunnelIndex)
}
