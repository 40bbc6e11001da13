// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// names finds the pod that has an address.
type names struct {
	db        *statedb.DB
	endpoints statedb.Table[*tables.Endpoint]
	nodes     statedb.Table[*tables.Node]
}

// now returns what has an address.
func (n *names) now(txn statedb.ReadTxn, addr netip.Addr) owner {
	found, _ := n.find(txn, addr)
	return found
}

// since returns what has had an address since a time in the past, none if another one had it then.
func (n *names) since(txn statedb.ReadTxn, addr netip.Addr, at time.Time) owner {
	found, since := n.find(txn, addr)
	if since.After(at) {
		return owner{}
	}
	return found
}

// find returns what has an address, and from when on it has had it at the earliest.
func (n *names) find(txn statedb.ReadTxn, addr netip.Addr) (found owner, since time.Time) {
	if e, _ := tables.AddrOwner(txn, n.endpoints, addr); e != nil {
		since = e.Created
		if e.Attached.After(since) {
			since = e.Attached
		}
		return owner{e.Name, e.Node}, since
	}
	for node := range n.nodes.List(txn, tables.NodesByAddr(addr)) {
		return owner{node: node.Name}, time.Time{}
	}
	return owner{}, time.Time{}
}
