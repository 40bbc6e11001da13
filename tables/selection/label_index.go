// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"cmp"
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
	seed    maphash.Seed
	sets    []*tables.LabelSet
	entries []labelEntry
	anchors map[uint32]anchored // by their hashes
	limit   int                 // of sets, at which it is made anew

	coming []*tables.LabelSet // that it is to have
	made   chan struct{}      // closed when it has those that were coming, nil if there were none

	hashes []uint32 // of one set's anchors
	text   []byte   // of an anchor
}

// labelEntry is a set under an anchor.
type labelEntry struct{ set, next uint32 }

// anchored are the sets under an anchor: how many, and the first and the last entry.
// Each entry leads to the next one.
type anchored struct{ count, first, last uint32 }

// manyGone are so many label sets that are gone that the index is made anew
// for them, if there are not as many others.
const manyGone = 1024

func newLabelIndex() *labelIndex {
	return &labelIndex{seed: maphash.MakeSeed(), anchors: map[uint32]anchored{}, limit: manyGone}
}

// expect is told of the label sets of all endpoints that there are at first.
func (x *labelIndex) expect(set *tables.LabelSet) { x.coming = append(x.coming, set) }

// begin has the index made of these, while others work: it is not needed before
// something changes.
func (x *labelIndex) begin() {
	if len(x.coming) == 0 {
		return
	}
	coming, made := x.coming, make(chan struct{})
	x.coming, x.made = nil, made
	go func() {
		defer close(made)
		for _, set := range coming {
			x.add(set)
		}
		x.limit = 2*len(x.sets) + manyGone
	}()
}

// await returns when the index has what was expected.
func (x *labelIndex) await() {
	if x.begin(); x.made != nil {
		<-x.made
		x.made = nil
	}
}

// take takes in the label set of an endpoint that is in a snapshot.
func (x *labelIndex) take(txn statedb.ReadTxn, endpoints statedb.Table[*tables.Endpoint], set *tables.LabelSet) {
	x.await()
	if x.add(set); len(x.sets) < x.limit {
		return
	}
	x.sets, x.entries = nil, nil
	clear(x.anchors)
	for e := range endpoints.All(txn) {
		x.add(e.LabelSet)
	}
	x.limit = 2*len(x.sets) + manyGone
}

func (x *labelIndex) add(set *tables.LabelSet) {
	x.hashes = append(x.hashes[:0], x.hash(tables.NamespaceAnchor(set.Namespace)))
	for _, label := range set.Labels {
		x.text = tables.AppendLabelAnchor(x.text[:0], label.Key, label.Value)
		x.hashes = append(x.hashes, uint32(maphash.Bytes(x.seed, x.text)))
	}
	for _, port := range set.NamedPorts {
		x.hashes = append(x.hashes, x.hash(tables.PortAnchor(port.Name, port.Protocol)))
	}
	rarest := slices.MinFunc(x.hashes, func(a, b uint32) int { return cmp.Compare(x.anchors[a].count, x.anchors[b].count) })
	for known := range x.under(rarest) {
		if known.ID == set.ID {
			return
		}
	}
	for _, hash := range x.hashes {
		of, at := x.anchors[hash], uint32(len(x.entries))
		x.entries = append(x.entries, labelEntry{set: uint32(len(x.sets))})
		if of.count == 0 {
			of.first = at
		} else {
			x.entries[of.last].next = at
		}
		x.anchors[hash] = anchored{of.count + 1, of.first, at}
	}
	x.sets = append(x.sets, set)
}

func (x *labelIndex) hash(anchor string) uint32 { return uint32(maphash.String(x.seed, anchor)) }

// with yields the label sets that may have an anchor.
func (x *labelIndex) with(anchor string) iter.Seq[*tables.LabelSet] {
	x.await()
	if anchor == tables.AnyAnchor {
		return slices.Values(x.sets)
	}
	return x.under(x.hash(anchor))
}

func (x *labelIndex) under(hash uint32) iter.Seq[*tables.LabelSet] {
	return func(yield func(*tables.LabelSet) bool) {
		of := x.anchors[hash]
		for at := of.first; of.count > 0; of.count-- {
			if !yield(x.sets[x.entries[at].set]) {
				return
			}
			at = x.entries[at].next
		}
	}
}
