// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"hash/maphash"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// labelIndex finds the label sets that have an anchor: what a selector can require
// of them, their namespace or one of their labels. Nobody requires most labels, and
// as an index of the table each of each set would take as much memory as a row.
//
// It has at least what the table has in the snapshot that it was last told of: also
// what is gone, until it is made anew, and sets whose anchors have the same hash.
type labelIndex struct {
	seed     maphash.Seed
	byAnchor map[uint64][]*tables.LabelSet
	taken    int // label sets since it was made
}

// manyGone are so many label sets that are gone that the index is made anew
// for them, if there are not as many others.
const manyGone = 1024

func newLabelIndex() *labelIndex {
	return &labelIndex{seed: maphash.MakeSeed(), byAnchor: map[uint64][]*tables.LabelSet{}}
}

// take takes in a label set that came or went.
func (x *labelIndex) take(txn statedb.ReadTxn, table statedb.Table[*tables.LabelSet], set *tables.LabelSet) {
	if _, _, found := table.Get(txn, tables.LabelSetByID(set.ID)); !found {
		return
	}
	if x.taken >= 2*table.NumObjects(txn)+manyGone {
		clear(x.byAnchor)
		x.taken = 0
		for set := range table.All(txn) {
			x.add(set)
		}
		return
	}
	x.add(set)
}

func (x *labelIndex) add(set *tables.LabelSet) {
	add := func(anchor string) {
		hash := maphash.String(x.seed, anchor)
		x.byAnchor[hash] = append(x.byAnchor[hash], set)
	}
	add(tables.NamespaceAnchor(set.Namespace))
	for _, label := range set.Labels {
		add(tables.LabelAnchor(label.Key, label.Value))
	}
	x.taken++
}

// with returns the label sets that may have an anchor.
func (x *labelIndex) with(anchor string) []*tables.LabelSet {
	return x.byAnchor[maphash.String(x.seed, anchor)]
}
