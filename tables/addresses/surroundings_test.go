// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// What is around an address or prefix is what a look at all prefixes finds, and to
// ask for it needs no memory.
func TestSurroundings(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	prefix := func() netip.Prefix {
		if random.IntN(2) == 0 {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(4)), byte(random.IntN(4))}), random.IntN(33)).Masked()
		}
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{10, 0, 15: byte(random.IntN(4))}), random.IntN(129)).Masked()
	}
	s := surroundings{classes: map[bpf.IPCacheKey]uint32{}}
	all := map[netip.Prefix]uint32{}
	for range 20000 {
		if p := prefix(); random.IntN(2) == 0 {
			class := uint32(1 + random.IntN(9))
			s.set(bpf.IPCacheKeyFrom(p), class)
			all[p] = class
		} else {
			s.remove(bpf.IPCacheKeyFrom(p))
			delete(all, p)
		}
		of := prefix()
		var want uint32
		longest := -1
		for p, class := range all {
			if p.Bits() < of.Bits() && p.Bits() > longest && p.Addr().Is4() == of.Addr().Is4() && p.Contains(of.Addr()) {
				longest, want = p.Bits(), class
			}
		}
		require.Equal(t, want, s.of(bpf.IPCacheKeyFrom(of)), of)
	}
	key := bpf.IPCacheKeyFrom(netip.MustParsePrefix("10.0.1.1/32"))
	require.Zero(t, testing.AllocsPerRun(100, func() { s.of(key) }))
}
