// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"
	"time"

	"github.com/cilium/statedb"
)

// EgressIPUntaken is an egress address that moves and that a node has not taken, though this node,
// a voter, has voted for it for long: another node is tried for a while.
type EgressIPUntaken struct {
	Addr  netip.Addr `json:"addr"`
	Node  string     `json:"node"`
	Since time.Time  `json:"since"`
	Past  bool       `json:"past,omitempty"` // it may be tried again, if no other node is suited
}

// TableHeader implements [statedb.TableWritable].
func (*EgressIPUntaken) TableHeader() []string {
	return []string{"Address", "Node", "Since", "Past"}
}

// TableRow implements [statedb.TableWritable].
func (u *EgressIPUntaken) TableRow() []string {
	return []string{
		u.Addr.String(), u.Node, u.Since.UTC().Format(time.RFC3339), strconv.FormatBool(u.Past),
	}
}

var egressIPUntakenIndex = UniqueIndex("id", StringKeys,
	func(u *EgressIPUntaken) string { return untakenID(u.Addr, u.Node) })

func untakenID(addr netip.Addr, node string) string { return addr.String() + " " + node }

// EgressIPUntakenBy queries whether a node has not taken an address.
func EgressIPUntakenBy(addr netip.Addr, node string) statedb.Query[*EgressIPUntaken] {
	return egressIPUntakenIndex.Query(untakenID(addr, node))
}

// NewEgressIPUntakenTable creates the table of addresses that nodes have not taken.
var NewEgressIPUntakenTable = Declare("egress-ip-untaken", egressIPUntakenIndex)
