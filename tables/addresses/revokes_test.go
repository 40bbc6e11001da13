// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// packets are of two protocols and sixteen ports, which are all that there is.
func packets() (keys []bpf.PolicyKey) {
	for _, protocol := range []uint8{6, 17} {
		for port := range uint16(16) {
			keys = append(keys, bpf.PolicyKeyOf(0, 0, 0, protocol, port<<12, 16))
		}
	}
	return keys
}

// first is what becomes of a packet, by going through all entries.
func first(t traffic, packet bpf.PolicyKey) (value bpf.PolicyValue, found bool) {
	var longest uint32
	for key, v := range t {
		if key.Covers(packet) && key.PrefixLen >= longest {
			value, found, longest = v, true, key.PrefixLen
		}
	}
	return value, found
}

func allows(peer, anyPeer traffic, packet bpf.PolicyKey) bool {
	p, byPeer := first(peer, packet)
	a, byAny := first(anyPeer, packet)
	top := bpf.PolicyValue{Deny: 1}
	if byPeer {
		top = p
	}
	if byAny && (!byPeer || a.Precedence > p.Precedence || a.Precedence == p.Precedence && a.Deny != 0) {
		top = a
	}
	return (byPeer || byAny) && top.Deny == 0
}

func TestRevokesAgainstAllPackets(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	verdicts := func() traffic {
		entries := traffic{}
		for range random.IntN(4) {
			var protocol uint8
			if random.IntN(4) > 0 {
				protocol = []uint8{6, 17}[random.IntN(2)]
			}
			key := bpf.PolicyKeyOf(0, 0, 0, protocol, uint16(random.IntN(16))<<12, random.IntN(5))
			value := bpf.PolicyValue{Precedence: uint32(random.IntN(3))}
			if value.Precedence == bpf.PrecedenceDeny || value.Precedence == 0 && random.IntN(2) == 0 {
				value.Deny = 1
			}
			entries[key] = value
		}
		return entries
	}
	outcomes := map[bool]int{}
	for range 20000 {
		was, wasAny, is, isAny := verdicts(), verdicts(), verdicts(), verdicts()
		want := false
		for _, packet := range packets() {
			want = want || allows(was, wasAny, packet) && !allows(is, isAny, packet)
		}
		got := revokes(was, wasAny, is, isAny)
		outcomes[want]++
		if want {
			require.True(t, got, "%v %v, then %v %v", was, wasAny, is, isAny)
		}
		if got && !want {
			// Longer keys may leave nothing of what a key covers: no packet has
			// it then, and a new epoch is one too many.
			require.True(t, hidden(was, wasAny, is, isAny))
		}
	}
	require.Greater(t, outcomes[true], 1000)
	require.Greater(t, outcomes[false], 1000)
}

// hidden reports whether some key has no packet that a longer one does not have.
func hidden(all ...traffic) bool {
	for _, entries := range all {
		for key := range entries {
			seen := false
			for _, packet := range packets() {
				longest := true
				for _, others := range all {
					for other := range others {
						longest = longest && !(other.PrefixLen > key.PrefixLen && other.Covers(packet))
					}
				}
				seen = seen || key.Covers(packet) && longest
			}
			if !seen {
				return true
			}
		}
	}
	return false
}
