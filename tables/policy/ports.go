// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"iter"
	"math/bits"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// PortPrefix is the ports that have their first bits in common with Port.
type PortPrefix struct {
	Port uint16
	Bits int
}

// PortPrefixes returns the fewest prefixes that together are a range of ports,
// in order.
func PortPrefixes(first, last uint16) []PortPrefix {
	var prefixes []PortPrefix
	for next, end := uint32(first), uint32(last)+1; next < end; {
		// As many ports as next is a multiple of, but no more than are left.
		free := min(bits.TrailingZeros32(next|1<<16), bits.Len32(end-next)-1)
		prefixes = append(prefixes, PortPrefix{uint16(next), 16 - free})
		next += 1 << free
	}
	return prefixes
}

// Covering yields the keys of sluice_policy that cover what a key covers for the
// same classes, longest first and beginning with the key itself.
func Covering(k bpf.PolicyKey) iter.Seq[bpf.PolicyKey] {
	return func(yield func(bpf.PolicyKey) bool) {
		if !k.AnyProtocol() {
			first, _ := k.Ports()
			for length := k.PortBits(); length >= 0; length-- {
				if !yield(bpf.PolicyKeyOf(k.Subject, k.Peer, k.Direction, k.Protocol, first, length)) {
					return
				}
			}
		}
		yield(bpf.PolicyKeyOf(k.Subject, k.Peer, k.Direction, 0, 0, 0))
	}
}

// Lookup is what the programs do to find the verdict on a packet: of what the
// map has for the class of the peer and for any peer, each by its longest prefix,
// the higher precedence decides, and a denial if they are equal. The port is that
// of the destination, or the type of ICMP. Without a match, the packet is dropped.
//
// It is not to be asked of subject class 0, of which the programs let all pass
// without a look.
func Lookup(get func(bpf.PolicyKey) (bpf.PolicyValue, bool), subject, peer uint32, direction bpf.Direction, protocol uint8, port uint16) (value bpf.PolicyValue, key bpf.PolicyKey, found bool) {
	for _, class := range []uint32{peer, bpf.AnyPeerClass} {
		v, k, ok := longest(get, bpf.PolicyKeyOf(subject, class, direction, protocol, port, 16))
		if ok && (!found || v.Precedence > value.Precedence || v.Precedence == value.Precedence && v.Deny > value.Deny) {
			value, key, found = v, k, true
		}
		if class == bpf.AnyPeerClass {
			break
		}
	}
	return value, key, found
}

// longest returns the entry of the longest key that covers another.
func longest(get func(bpf.PolicyKey) (bpf.PolicyValue, bool), of bpf.PolicyKey) (value bpf.PolicyValue, key bpf.PolicyKey, found bool) {
	for cover := range Covering(of) {
		if value, found = get(cover); found {
			return value, cover, true
		}
	}
	return bpf.PolicyValue{}, bpf.PolicyKey{}, false
}

// keysOf yields the keys of the ports of a rule, of which those by name are
// resolved by the ports of the side that has them.
func keysOf(pair tables.PolicyPair, ports []tables.PolicyPort, named []tables.NamedPort, onlyNamed bool) iter.Seq[bpf.PolicyKey] {
	return func(yield func(bpf.PolicyKey) bool) {
		key := func(protocol uint8, port uint16, length int) bool {
			return yield(bpf.PolicyKeyOf(pair.Subject, pair.Peer, pair.Direction, protocol, port, length))
		}
		if len(ports) == 0 && !onlyNamed {
			key(0, 0, 0)
			return
		}
		for _, p := range ports {
			if p.Name != "" {
				for _, n := range named {
					if n.Name == p.Name && n.Protocol == p.Protocol && !key(p.Protocol, n.Port, 16) {
						return
					}
				}
				continue
			}
			if onlyNamed {
				continue
			}
			for _, prefix := range PortPrefixes(p.First, p.Last) {
				if !key(p.Protocol, prefix.Port, prefix.Bits) {
					return
				}
			}
		}
	}
}
