// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"iter"
	"net/netip"

	"github.com/cilium/statedb"
)

// Inside yields those rows that have their address in a prefix. The rows come from
// [statedb.Table.LowerBound] of the prefix in an index by address or prefix, or from
// [statedb.Table.Prefix] in an LPM index. Inside stops at the first row after the prefix.
//
// For github.com/cilium/statedb (v0.8.3): Prefix of an LPM index yields objects that are not in
// the prefix. If no object is in it, the search ends at a node that differs from the prefix, and
// Prefix yields all objects at and below that node:
//
//	wtxn := db.WriteTxn(table)
//	table.Insert(wtxn, &Route{netip.MustParsePrefix("192.168.0.0/16")})
//	txn := wtxn.Commit()
//	query := routeIndex.QueryPrefix(netip.MustParsePrefix("10.0.0.0/8"))
//	for route := range table.Prefix(txn, query) {
//		fmt.Println(route.Prefix) // 192.168.0.0/16
//	}
//
// Better: lpm.Txn.Prefix returns no iterator unless the node matches all bits of the prefix.
// Also, [statedb.NetIPPrefixIndex] maps IPv4 to ::ffff:0:0/96, so a prefix such as ::/0 contains
// all of IPv4 there. The documentation could say so.
func Inside[Row any](
	prefix netip.Prefix, rows iter.Seq2[Row, statedb.Revision], addr func(Row) netip.Addr,
) iter.Seq[Row] {
	mapped := netip.PrefixFrom(mapTo6(prefix.Addr()), prefix.Bits()+128-prefix.Addr().BitLen())
	return func(yield func(Row) bool) {
		for row := range rows {
			a := addr(row)
			if !mapped.Contains(mapTo6(a)) || prefix.Contains(a) && !yield(row) {
				return
			}
		}
	}
}

// mapTo6 returns the IPv6 address that an LPM index has for an address.
func mapTo6(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }
