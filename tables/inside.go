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
// This is for want of a function of StateDB: see docs/statedb.md.
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
