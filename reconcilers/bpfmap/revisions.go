// SPDX-License-Identifier: Apache-2.0

package bpfmap

import "github.com/cilium/statedb"

// revisions are the revisions that a table got by a reconciler's own writes of
// statuses, which come back to it among the table's changes.
type revisions struct {
	ranges []revisionRange // ascending
}

type revisionRange struct{ first, last statedb.Revision }

// add adds the revisions from first to last.
func (r *revisions) add(first, last statedb.Revision) {
	if first > last {
		return
	}
	if n := len(r.ranges); n > 0 && r.ranges[n-1].last+1 == first {
		r.ranges[n-1].last = last
		return
	}
	r.ranges = append(r.ranges, revisionRange{first, last})
}

func (r *revisions) contains(revision statedb.Revision) bool {
	for i := len(r.ranges) - 1; i >= 0; i-- {
		if in := r.ranges[i]; revision >= in.first {
			return revision <= in.last
		}
	}
	return false
}

// forget drops what will not be asked for again: changes come in the order of
// revisions, and that one has come.
func (r *revisions) forget(upTo statedb.Revision) {
	n := 0
	for n < len(r.ranges) && r.ranges[n].last <= upTo {
		n++
	}
	r.ranges = r.ranges[n:]
}
