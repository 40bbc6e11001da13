// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"bytes"
	"iter"
	"net/netip"

	"github.com/cilium/statedb"
)

// Inside yields those rows of a table that have an address in a prefix; one may
// come several times. The rows are those from the first address of the prefix
// on, in the order of an index by address or prefix. The work is that of the
// rows that are found; for a short prefix of IPv6 the rows of IPv4 are among them.
func Inside[Row any](prefix netip.Prefix, rows iter.Seq2[Row, statedb.Revision], addrs func(Row) []netip.Addr) iter.Seq[Row] {
	first, last := bounds(prefix)
	return func(yield func(Row) bool) {
		for row := range rows {
			within, inside := false, false
			for _, a := range addrs(row) {
				key := a.As16()
				within = within || bytes.Compare(first[:], key[:]) <= 0 && bytes.Compare(key[:], last[:]) <= 0
				inside = inside || prefix.Contains(a)
			}
			if !within || inside && !yield(row) {
				return
			}
		}
	}
}

// bounds returns the first and the last address of a prefix as they are ordered
// in indexes.
func bounds(p netip.Prefix) (first, last [16]byte) {
	first = p.Masked().Addr().As16()
	last = first
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	for i := bits; i < 128; i++ {
		last[i/8] |= 1 << (7 - i%8)
	}
	return first, last
}
