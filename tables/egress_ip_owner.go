// SPDX-License-Identifier: Apache-2.0

package tables

import "net/netip"

// EgressIPOwner is the node that has an egress address that moves, as it tells all others itself.
// It is not there while no node has told of late.
type EgressIPOwner struct {
	Addr     netip.Addr `json:"addr"`
	NodeAddr netip.Addr `json:"nodeAddr"` // underlay address
}

// TableHeader implements [statedb.TableWritable].
func (*EgressIPOwner) TableHeader() []string { return []string{"Address", "NodeAddress"} }

// TableRow implements [statedb.TableWritable].
func (o *EgressIPOwner) TableRow() []string {
	return []string{o.Addr.String(), o.NodeAddr.String()}
}

var egressIPOwnerAddrIndex = UniqueIndex("addr", AddrKeys,
	func(o *EgressIPOwner) netip.Addr { return o.Addr })

// EgressIPOwnerByAddr queries the owner of an address.
var EgressIPOwnerByAddr = egressIPOwnerAddrIndex.Query

// NewEgressIPOwnerTable creates the table of the nodes that have egress addresses.
var NewEgressIPOwnerTable = Declare("egress-ip-owners", egressIPOwnerAddrIndex)
