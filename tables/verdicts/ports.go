// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"iter"
	"math/bits"

	"github.com/sluice-net/sluice/bpf"
)

// PortPrefix is the ports that have their first bits in common with Port.
type PortPrefix struct {
	Port uint16
	Bits int
}

// PortPrefixes returns the fewest prefixes that together are a range of ports, in order.
func PortPrefixes(first, last uint16) []PortPrefix {
	var prefixes []PortPrefix
	for next, end := uint32(first), uint32(last)+1; next < end; {
		// The largest power of two that divides next, but no more ports than are left.
		free := min(bits.TrailingZeros32(next|1<<16), bits.Len32(end-next)-1)
		prefixes = append(prefixes, PortPrefix{uint16(next), 16 - free})
		next += 1 << free
	}
	return prefixes
}

// Around yields the keys of a verdict set that cover a key, the longest first, beginning with the
// key itself.
func Around(k bpf.VerdictKey) iter.Seq[bpf.VerdictKey] {
	return func(yield func(bpf.VerdictKey) bool) {
		if protocol, port, length := k.Traffic(); protocol != 0 {
			for ; length >= 0; length-- {
				if !yield(bpf.VerdictKeyOf(k.Set, protocol, port, length)) {
					return
				}
			}
		}
		yield(bpf.VerdictKeyOf(k.Set, 0, 0, 0))
	}
}
