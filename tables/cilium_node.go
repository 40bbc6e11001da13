// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// CiliumNode is what a CiliumNode adds to a [Node]: addresses that only Cilium
// knows of, such as that of its internal device. They are in the cluster, and
// the endpoints of a node may name any of them.
type CiliumNode struct {
	Name   string       `json:"name"` // of the node
	Addrs  []netip.Addr `json:"addrs,omitempty"`
	Errors []FieldError `json:"errors,omitempty"`
}

// TableHeader implements [statedb.TableWritable].
func (*CiliumNode) TableHeader() []string { return []string{"Name", "Addresses", "Errors"} }

// TableRow implements [statedb.TableWritable].
func (n *CiliumNode) TableRow() []string {
	return []string{n.Name, listColumn(stringsOf(n.Addrs), ", "), errorColumn(n.Errors)}
}

var (
	ciliumNodeNameIndex = statedb.Index[*CiliumNode, string]{
		Name:       "name",
		FromObject: func(n *CiliumNode) index.KeySet { return index.NewKeySet(index.String(n.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}

	ciliumNodeAddrIndex = statedb.Index[*CiliumNode, netip.Addr]{
		Name:       "addr",
		FromObject: func(n *CiliumNode) index.KeySet { return addrKeys(n.Addrs) },
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
	}

	// CiliumNodeByName queries what Cilium tells about a node.
	CiliumNodeByName = ciliumNodeNameIndex.Query

	// CiliumNodesByAddr queries the nodes that have an address.
	CiliumNodesByAddr = ciliumNodeAddrIndex.Query
)

// NewCiliumNodeTable creates the table of nodes as Cilium tells them.
func NewCiliumNodeTable(db *statedb.DB) (statedb.RWTable[*CiliumNode], error) {
	return statedb.NewTable(db, "cilium-nodes", ciliumNodeNameIndex, ciliumNodeAddrIndex)
}
