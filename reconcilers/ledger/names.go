// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// maxNamed bounds the addresses whose owners are kept.
const maxNamed = 1 << 16

// names finds the pod that has, or had, an address. Its methods must not be called at the same
// time.
type names struct {
	db        *statedb.DB
	endpoints statedb.Table[*tables.Endpoint]
	nodes     statedb.Table[*tables.Node]

	// The pods that translations have begun for, by address, the last two of each: at the end the
	// pod may be gone, and another one may have its address.
	began map[netip.Addr][2]named
}

type named struct {
	owner
	from time.Time
}

// begin returns what has an address at a time that is now, or was when the agent was not running.
func (n *names) begin(txn statedb.ReadTxn, addr netip.Addr, at time.Time) owner {
	found, since := n.find(txn, addr)
	if since.After(at) { // it has it since then, and another one had it
		return owner{}
	}
	last := n.began[addr]
	if last[0].owner != found {
		if n.began == nil || len(n.began) >= maxNamed {
			n.began = map[netip.Addr][2]named{}
		}
		n.began[addr] = [2]named{{found, at}, last[0]}
	}
	return found
}

// end returns what had an address when a translation began.
func (n *names) end(txn statedb.ReadTxn, addr netip.Addr, began time.Time) owner {
	for _, known := range n.began[addr] {
		// The clock may have been set, by little, since the begin was written.
		if known.owner != (owner{}) && !known.from.After(began.Add(time.Millisecond)) {
			return known.owner
		}
	}
	found, since := n.find(txn, addr)
	if since.After(began) {
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
