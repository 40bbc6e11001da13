// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/sluice-net/sluice/bpf"
)

// ClusterNode is an internal address of a node of the cluster, by which others
// reach it. An entry of sluice_nodes.
type ClusterNode struct {
	Addr  netip.Addr `json:"addr"`
	Nodes []string   `json:"nodes"` // that claim it, sorted
	Alive bool       `json:"alive"` // any of them is ready, and not lost

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (n *ClusterNode) Equal(o *ClusterNode) bool {
	return n.Addr == o.Addr && n.Alive == o.Alive && slices.Equal(n.Nodes, o.Nodes)
}

// MapKey is the key in sluice_nodes.
func (n *ClusterNode) MapKey() bpf.NodeKey { return bpf.NodeKey{Addr: bpf.AddressFrom(n.Addr)} }

// MapValue is the value in sluice_nodes.
func (n *ClusterNode) MapValue() (v bpf.NodeValue) {
	if n.Alive {
		v.Flags |= bpf.NodeAlive
	}
	return v
}

// TableHeader implements [statedb.TableWritable].
func (*ClusterNode) TableHeader() []string {
	return []string{"Address", "Nodes", "Alive", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (n *ClusterNode) TableRow() []string {
	return []string{
		n.Addr.String(), listColumn(n.Nodes, ", "), strconv.FormatBool(n.Alive), n.Status.Kind.String(), orDash(n.Status.GetError()),
	}
}

var (
	clusterNodeAddrIndex = UniqueIndex("addr", AddrKeys,
		func(n *ClusterNode) netip.Addr { return n.Addr })

	// ClusterNodeByAddr queries the nodes that have an address.
	ClusterNodeByAddr = clusterNodeAddrIndex.Query
)

// NewClusterNodeTable creates the table of the addresses of nodes.
var NewClusterNodeTable = Declare("cluster-nodes", clusterNodeAddrIndex)
