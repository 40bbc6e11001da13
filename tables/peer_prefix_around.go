// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"github.com/cilium/statedb"
)

// PeerPrefixAround returns the longest prefix that contains a prefix or is equal to it, nil if
// there is none.
//
// For github.com/cilium/statedb (v0.8.3): Get and List of [statedb.NetIPPrefixIndex.QueryPrefix]
// find the longest prefix around an address, but not around a shorter prefix. The lookup ends at
// the first node that matches all bits of the query, even if this node is inside the prefix. It
// returns the object of that node, or nothing if the node only joins two others:
//
//	wtxn := db.WriteTxn(table)
//	table.Insert(wtxn, &Route{netip.MustParsePrefix("10.0.0.0/8")})
//	table.Insert(wtxn, &Route{netip.MustParsePrefix("10.1.2.3/32")})
//	txn := wtxn.Commit()
//	query := routeIndex.QueryPrefix(netip.MustParsePrefix("10.1.0.0/16"))
//	route, _, _ := table.Get(txn, query)
//	fmt.Println(route.Prefix) // 10.1.2.3/32, not 10.0.0.0/8
//
// Better: lpmLookup goes on only while the prefix of the node is at most as long as the query,
// and returns the last node with an object. As IPv4 is mapped to ::ffff:0:0/96, the result for
// an IPv4 address may also be an IPv6 prefix such as ::/0: the caller has to compare families.
func PeerPrefixAround(
	txn statedb.ReadTxn, table statedb.Table[*PeerPrefix], prefix netip.Prefix,
) *PeerPrefix {
	if prefix.IsSingleIP() {
		p, _, found := table.Get(txn, peerPrefixLongest.QueryPrefix(prefix))
		if found && p.Prefix.Addr().Is4() == prefix.Addr().Is4() {
			return p
		}
		return nil
	}
	for bits := prefix.Bits(); bits >= 0; bits-- {
		around := netip.PrefixFrom(prefix.Addr(), bits).Masked()
		if p, _, found := table.Get(txn, PeerPrefixByPrefix(around)); found {
			return p
		}
	}
	return nil
}
