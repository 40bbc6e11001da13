// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"
)

// EgressIP is an egress address that moves: a policy names it, and it is one of a pool. All
// nodes find the same node for it; where it is this one, the row says by which device. A fixed one
// is of a pool of addresses that nodes have by others, and stays at its owner: no node votes on it.
type EgressIP struct {
	Addr     netip.Addr `json:"addr"`
	Pool     string     `json:"pool"`
	Fixed    bool       `json:"fixed,omitempty"`
	Policies []string   `json:"policies"` // that name it, in order of precedence

	Node     string     `json:"node,omitempty"`    // that shall have it, as this one finds, or none
	NodeAddr netip.Addr `json:"nodeAddr,omitzero"` // underlay address of the node
	Reason   string     `json:"reason,omitempty"`  // why no node, or this one by no device

	// Owner is the node that has it, as that has told; empty if none has told of late, or if it is
	// lost for this node. Of a fixed one it is the node that policies elect.
	Owner     string     `json:"owner,omitempty"`
	OwnerAddr netip.Addr `json:"ownerAddr,omitzero"` // underlay address of the owner

	// IfIndex is of the device of this node, if it may have the address, or has a fixed one.
	IfIndex uint32 `json:"ifIndex,omitempty"`
	Device  string `json:"device,omitempty"`
}

// Equal reports whether two rows say the same.
func (e *EgressIP) Equal(o *EgressIP) bool {
	return e.Addr == o.Addr && e.Pool == o.Pool && e.Fixed == o.Fixed &&
		slices.Equal(e.Policies, o.Policies) &&
		e.Node == o.Node && e.NodeAddr == o.NodeAddr && e.Reason == o.Reason &&
		e.Owner == o.Owner && e.OwnerAddr == o.OwnerAddr &&
		e.IfIndex == o.IfIndex && e.Device == o.Device
}

// At returns the node to which this one sends what is to leave with the address: the owner, and
// while that is not known, the node that shall have the address.
func (e *EgressIP) At() (node string, addr netip.Addr) {
	if e.Owner != "" {
		return e.Owner, e.OwnerAddr
	}
	return e.Node, e.NodeAddr
}

// TableHeader implements [statedb.TableWritable].
func (*EgressIP) TableHeader() []string {
	return []string{"Address", "Pool", "Policies", "Node", "Owner", "Device", "Reason"}
}

// TableRow implements [statedb.TableWritable].
func (e *EgressIP) TableRow() []string {
	return []string{
		e.Addr.String(), e.Pool, listColumn(e.Policies, ", "), orDash(e.Node), orDash(e.Owner),
		orDash(e.Device), orDash(e.Reason),
	}
}

var (
	egressIPAddrIndex = UniqueIndex("addr", AddrKeys,
		func(e *EgressIP) netip.Addr { return e.Addr })

	// EgressIPByAddr queries an egress address that moves, or is fixed.
	EgressIPByAddr = egressIPAddrIndex.Query
)

// NewEgressIPTable creates the table of egress addresses of pools.
var NewEgressIPTable = Declare("egress-ips", egressIPAddrIndex)
