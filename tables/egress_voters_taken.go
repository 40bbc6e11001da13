// SPDX-License-Identifier: Apache-2.0

package tables

import "strconv"

// EgressVotersTaken is which generation of table egress-voters this node goes by: it counts votes
// of its sets alone, and none that it has given in others is valid any more.
type EgressVotersTaken struct {
	Index      uint32 `json:"index"` // always 0
	Generation uint32 `json:"generation"`
}

// TableHeader implements [statedb.TableWritable].
func (*EgressVotersTaken) TableHeader() []string { return []string{"Generation"} }

// TableRow implements [statedb.TableWritable].
func (v *EgressVotersTaken) TableRow() []string {
	return []string{strconv.FormatUint(uint64(v.Generation), 10)}
}

var votersTakenIndex = UniqueIndex("index", Uint32Keys,
	func(v *EgressVotersTaken) uint32 { return v.Index })

// EgressVotersTakenByIndex queries the one row, whose index is 0.
var EgressVotersTakenByIndex = votersTakenIndex.Query

// NewEgressVotersTakenTable creates the table of what this node goes by.
var NewEgressVotersTakenTable = Declare("egress-voters-taken", votersTakenIndex)
