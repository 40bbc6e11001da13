// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/fnv"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// spread assigns each bucket to one of the elected gateways, by its position, -1 if none is
// elected. It uses rendezvous hashing: each gateway has a weight in each bucket that depends on
// nothing else, and the greatest wins. Losing one of n gateways moves only its own buckets, and
// every node of the cluster computes the same.
func spread(gateways []tables.GatewayChoice) [bpf.GatewayBuckets]int {
	var chosen [bpf.GatewayBuckets]int
	var greatest [bpf.GatewayBuckets]uint64
	for bucket := range chosen {
		chosen[bucket] = -1
	}
	for i, g := range gateways {
		if g.Node == "" {
			continue
		}
		// A gateway is a node and how it sends, not its place in the list.
		sum := sha256.Sum256([]byte(g.Node + " " + g.Spec.Interface + " " + g.Spec.EgressIP.String()))
		seed := binary.BigEndian.Uint64(sum[:])
		for bucket := range chosen {
			weight := mix(seed + uint64(bucket)*0x9e3779b97f4a7c15)
			if chosen[bucket] < 0 || weight > greatest[bucket] {
				chosen[bucket], greatest[bucket] = i, weight
			}
		}
	}
	return chosen
}

// weightOf returns the weight that a node has for something: the greatest wins.
func weightOf(something, node string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(something + " " + node))
	return mix(h.Sum64())
}

// mix is the finalizer of the SplitMix64 generator: a bijection in which every
// bit of the input changes about half of the bits of the result.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
