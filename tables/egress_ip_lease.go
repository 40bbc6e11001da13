// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"
	"strconv"
)

// EgressIPLease is an egress address that moves and that this node may have: it has the address as
// long as a majority of the voters votes for it. The votes themselves are in the kernel, in
// [bpf.VotesMap].
type EgressIPLease struct {
	Addr    netip.Addr `json:"addr"`
	IfIndex uint32     `json:"ifIndex"` // device that has the address, or is to have it

	Votes []string `json:"votes,omitempty"` // the nodes that vote for this one, in order of name
	Held  bool     `json:"held"`            // they are a majority

	// Generation is when the node got the address, 0 while it has not: in tenths of seconds since the
	// beginning of 2026, by its clock. A later owner has a greater one.
	Generation uint32 `json:"generation"`

	Assigned bool   `json:"assigned"`          // it is at the device
	Problem  string `json:"problem,omitempty"` // why it is not, empty if it is being done
}

// Equal reports whether two rows say the same.
func (l *EgressIPLease) Equal(o *EgressIPLease) bool {
	return l.Addr == o.Addr && l.IfIndex == o.IfIndex && slices.Equal(l.Votes, o.Votes) &&
		l.Held == o.Held && l.Generation == o.Generation && l.Assigned == o.Assigned &&
		l.Problem == o.Problem
}

// TableHeader implements [statedb.TableWritable].
func (*EgressIPLease) TableHeader() []string {
	return []string{"Address", "IfIndex", "Held", "Votes", "Generation", "Assigned", "Problem"}
}

// TableRow implements [statedb.TableWritable].
func (l *EgressIPLease) TableRow() []string {
	return []string{
		l.Addr.String(), strconv.FormatUint(uint64(l.IfIndex), 10), strconv.FormatBool(l.Held),
		listColumn(l.Votes, ", "), strconv.FormatUint(uint64(l.Generation), 10),
		strconv.FormatBool(l.Assigned), orDash(l.Problem),
	}
}

var (
	egressIPLeaseAddrIndex = UniqueIndex("addr", AddrKeys,
		func(l *EgressIPLease) netip.Addr { return l.Addr })

	egressIPLeaseIfIndexIndex = Index("ifindex", Uint32Keys,
		func(l *EgressIPLease) uint32 { return l.IfIndex })

	// EgressIPLeaseByAddr queries the lease of an address.
	EgressIPLeaseByAddr = egressIPLeaseAddrIndex.Query

	// EgressIPLeasesByIfIndex queries the leases of the addresses of a device.
	EgressIPLeasesByIfIndex = egressIPLeaseIfIndexIndex.Query
)

// NewEgressIPLeaseTable creates the table of the egress addresses that this node may have.
var NewEgressIPLeaseTable = Declare(
	"egress-ip-leases", egressIPLeaseAddrIndex, egressIPLeaseIfIndexIndex,
)
