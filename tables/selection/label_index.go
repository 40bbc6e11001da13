// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"hash/maphash"
	"iter"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// labelIndex has the label sets of all endpoints, each once, and finds those that
// have an anchor: what a selector can require of them, their namespace, one of their
// labels or the name of a port. Nobody requires most labels, and as an index of a
// table each of each set would take as much memory as a row.
//
// It has at least what endpoints have in the snapshot that it was last told of: also
// what is gone, until it is made anew, and sets whose anchors have the same hash.
type labelIndex struct {
	seed     maphash.Seed
	sets     []*tables.LabelSet
	byAnchor map[uint64][]uint32 // where they are in sets
	limit    int                 // of sets, at which it is made anew
	hashes   []uint64            // of one set's anchors
}

// manyGone are so many label sets that are gone that the index is made anew
// for them, if there are not as many others.
const manyGone = 1024

func newLabelIndex() *labelIndex {
	return &labelIndex{seed: maphash.MakeSeed(), byAnchor: map[uint64][]uint32{}, limit: manyGone}
}

// take takes in the label set of an endpoint that is in a snapshot.
func (x *labelIndex) take(txn statedb.ReadTxn, endpoints statedb.Table[*tables.Endpoint], set *tables.LabelSet) {
	if x.add(set); len(x.sets) < x.limit {
		return
	}
	x.sets = nil
	clear(x.byAnchor)
	for e := range endpoints.All(txn) {
		x.add(e.LabelSet)
	}
	x.limit = 2*len(x.sets) + manyGone
}

func (x *labelIndex) add(set *tables.LabelSet) {
	x.hashes = append(x.hashes[:0], x.hash(tables.NamespaceAnchor(set.Namespace)))
	for _, label := range set.Labels {
		x.hashes = append(x.hashes, x.hash(tables.LabelAnchor(label.Key, label.Value)))
	}
	for _, port := range set.NamedPorts {
		x.hashes = append(x.hashes, x.hash(tables.PortAnchor(port.Name, port.Protocol)))
	}
	rarest := slices.MinFunc(x.hashes, func(a, b uint64) int { return len(x.byAnchor[a]) - len(x.byAnchor[b]) })
	if slices.ContainsFunc(x.byAnchor[rarest], func(at uint32) bool { return x.sets[at].ID == set.ID }) {
		return
	}
	for _, hash := range x.hashes {
		x.byAnchor[hash] = append(x.byAnchor[hash], uint32(len(x.sets)))
	}
	x.sets = append(x.sets, set)
}

func (x *labelIndex) hash(anchor string) uint64 { return maphash.String(x.seed, anchor) }

// with yields the label sets that may have an anchor.
func (x *labelIndex) with(anchor string) iter.Seq[*tables.LabelSet] {
	if anchor == tables.AnyAnchor {
		return slices.Values(x.sets)
	}
	return func(yield func(*tables.LabelSet) bool) {
		for _, at := range x.byAnchor[x.hash(anchor)] {
			if !yield(x.sets[at]) {
				return
			}
		}
	}
}
