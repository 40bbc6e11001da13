// SPDX-License-Identifier: Apache-2.0

package tables

import "net/netip"

// EgressIPVote is the vote of this node, if it is a voter, for an egress address that moves.
type EgressIPVote struct {
	Addr netip.Addr `json:"addr"`

	Node string `json:"node,omitempty"` // for which it votes, empty for none
	Wait string `json:"wait,omitempty"` // why it does not vote now
}

// TableHeader implements [statedb.TableWritable].
func (*EgressIPVote) TableHeader() []string { return []string{"Address", "Node", "Waiting"} }

// TableRow implements [statedb.TableWritable].
func (v *EgressIPVote) TableRow() []string {
	return []string{v.Addr.String(), orDash(v.Node), orDash(v.Wait)}
}

var egressIPVoteAddrIndex = UniqueIndex("addr", AddrKeys,
	func(v *EgressIPVote) netip.Addr { return v.Addr })

// EgressIPVoteByAddr queries the vote for an address.
var EgressIPVoteByAddr = egressIPVoteAddrIndex.Query

// NewEgressIPVoteTable creates the table of the votes of this node.
var NewEgressIPVoteTable = Declare("egress-ip-votes", egressIPVoteAddrIndex)
