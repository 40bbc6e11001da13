// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"slices"
)

// AddrRange are the addresses of one family from the first to the last.
type AddrRange struct {
	First netip.Addr `json:"first"`
	Last  netip.Addr `json:"last"`
}

func (r AddrRange) String() string { return r.First.String() + "-" + r.Last.String() }

// Contains reports whether an address is in the range.
func (r AddrRange) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && a.Is4() == r.Last.Is4() &&
		r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// CountAddrs returns how many addresses are in ranges that do not overlap, math.MaxInt64 if there
// are more.
func CountAddrs(ranges []AddrRange) (n int64) {
	for _, r := range ranges {
		if n += r.size(); n < 0 {
			return math.MaxInt64
		}
	}
	return n
}

// size is how many addresses are in the range, math.MaxInt64 if there are more.
func (r AddrRange) size() int64 {
	first, last := r.First.As16(), r.Last.As16()
	low, borrow := bits.Sub64(
		binary.BigEndian.Uint64(last[8:]), binary.BigEndian.Uint64(first[8:]), 0)
	high, _ := bits.Sub64(
		binary.BigEndian.Uint64(last[:8]), binary.BigEndian.Uint64(first[:8]), borrow)
	if high > 0 || low >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(low) + 1
}

// rangeOf returns the addresses of a prefix.
func rangeOf(p netip.Prefix) AddrRange {
	last := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(last)
	return AddrRange{First: p.Masked().Addr(), Last: addr}
}

// Spans returns the addresses of the pool, those for which Contains is true, as ranges in order
// that do not overlap.
func (p *EgressIPPool) Spans() (spans []AddrRange) {
	ranges := slices.Clone(p.Ranges)
	for _, prefix := range p.Prefixes {
		ranges = append(ranges, rangeOf(prefix))
	}
	slices.SortFunc(ranges, func(a, b AddrRange) int { return a.First.Compare(b.First) })
	for _, r := range ranges {
		if n := len(spans); n > 0 && spans[n-1].Contains(r.First) {
			if spans[n-1].Last.Less(r.Last) {
				spans[n-1].Last = r.Last
			}
			continue
		}
		spans = append(spans, r)
	}
	if p.Error != "" {
		return spans
	}
	for _, excluded := range p.Excluded {
		spans = SubtractRange(spans, rangeOf(excluded))
	}
	return spans
}

// NetworkAddrs returns the addresses of the pool that networks keep for themselves: of an IPv4
// prefix the first, of the network, and the last, to broadcast; of an IPv6 prefix the first, of any
// router in the subnet. Prefixes that have no such addresses, from /31 and /127 on, and ranges are
// as they are written: what one of these has is none of them.
func (p *EgressIPPool) NetworkAddrs() (addrs []netip.Addr) {
	written := slices.Clone(p.Ranges)
	var kept []netip.Addr
	for _, prefix := range p.Prefixes {
		r := rangeOf(prefix)
		switch {
		case prefix.Bits() >= prefix.Addr().BitLen()-1:
			written = append(written, r)
		case r.First.Is4():
			kept = append(kept, r.First, r.Last)
		default:
			kept = append(kept, r.First)
		}
	}
	for _, a := range kept {
		if !slices.ContainsFunc(written, func(r AddrRange) bool { return r.Contains(a) }) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// SubtractRange returns what is left of ranges without the addresses of another one.
func SubtractRange(ranges []AddrRange, excluded AddrRange) (rest []AddrRange) {
	for _, r := range ranges {
		if r.First.Is4() != excluded.First.Is4() || excluded.Last.Less(r.First) ||
			r.Last.Less(excluded.First) {
			rest = append(rest, r)
			continue
		}
		if r.First.Less(excluded.First) {
			rest = append(rest, AddrRange{First: r.First, Last: excluded.First.Prev()})
		}
		if excluded.Last.Less(r.Last) {
			rest = append(rest, AddrRange{First: excluded.Last.Next(), Last: r.Last})
		}
	}
	return rest
}
