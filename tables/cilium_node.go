// SPDX-License-Identifier: Apache-2.0

package tables

import "net/netip"

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
	ciliumNodeNameIndex = UniqueIndex("name", StringKeys,
		func(n *CiliumNode) string { return n.Name })

	ciliumNodeAddrIndex = IndexEach("addr", AddrKeys,
		func(n *CiliumNode) []netip.Addr { return n.Addrs })

	// CiliumNodeByName queries the CiliumNode of a node.
	CiliumNodeByName = ciliumNodeNameIndex.Query

	// CiliumNodesByAddr queries the nodes that have an address.
	CiliumNodesByAddr = ciliumNodeAddrIndex.Query
)

// NewCiliumNodeTable creates the table of Cilium's nodes.
var NewCiliumNodeTable = Declare("cilium-nodes", ciliumNodeNameIndex, ciliumNodeAddrIndex)
