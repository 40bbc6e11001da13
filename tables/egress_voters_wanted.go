// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"
	"strconv"
)

// WantedEgressVoters is what the object with the nodes that vote on egress addresses shall say.
// There is a row only while this operator leads, and none without pools. It is done when the
// object says so.
type WantedEgressVoters struct {
	Index uint32 `json:"index"` // always 0

	Generation uint32     `json:"generation,omitempty"`
	Sets       []VoterSet `json:"sets,omitempty"`

	// From is the version of the object that the set follows from, and that alone may be replaced;
	// zero if there shall be none yet.
	From ObjectVersion `json:"from"`

	Waits   string `json:"waits,omitempty"`   // what the next set waits for
	Problem string `json:"problem,omitempty"` // why there can be no next set until a person acts

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (v *WantedEgressVoters) Equal(o *WantedEgressVoters) bool {
	return v.Index == o.Index && v.Generation == o.Generation &&
		slices.EqualFunc(v.Sets, o.Sets, VoterSet.Equal) && v.From == o.From &&
		v.Waits == o.Waits && v.Problem == o.Problem
}

// TableHeader implements [statedb.TableWritable].
func (*WantedEgressVoters) TableHeader() []string {
	return []string{"Generation", "Voters", "Waits", "Problem", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (v *WantedEgressVoters) TableRow() []string {
	return []string{
		strconv.FormatUint(uint64(v.Generation), 10), setsColumn(v.Sets), orDash(v.Waits),
		orDash(v.Problem), v.Status.Kind.String(), orDash(v.Status.GetError()),
	}
}

var (
	wantedVotersIndex = UniqueIndex("index", Uint32Keys,
		func(v *WantedEgressVoters) uint32 { return v.Index })

	// WantedEgressVotersByIndex queries the one row, whose index is 0.
	WantedEgressVotersByIndex = wantedVotersIndex.Query
)

// NewWantedEgressVotersTable creates the table of what the object of voters shall say.
var NewWantedEgressVotersTable = Declare("egress-voters-wanted", wantedVotersIndex)
