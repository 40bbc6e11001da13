// SPDX-License-Identifier: Apache-2.0

package nodereport

import (
	"time"

	"github.com/sluice-net/sluice/tables"
)

// voters says which generation of the nodes that vote on egress addresses is acknowledged. After
// a restart it begins anew: what was acknowledged before is so again a while later.
type voters struct {
	rest time.Duration // for how long votes of the former generation count

	taken uint32    // the last generation of the table
	since time.Time // when it was seen first
	told  uint32    // the greatest one that is acknowledged
}

// look takes the row in, nil if there is none, and returns when to look again; zero for no time.
// Without a set, what was acknowledged stays: the next set is to have a greater generation.
func (v *voters) look(row *tables.EgressVoters, now time.Time) (again time.Time) {
	if row == nil || row.Error != "" {
		return time.Time{}
	}
	if row.Generation != v.taken {
		v.taken, v.since = row.Generation, now
	}
	if due := v.since.Add(v.rest); now.Before(due) {
		return due
	}
	v.told = v.taken
	return time.Time{}
}
