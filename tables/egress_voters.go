// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"
	"strconv"
)

// MaxEgressVoters is how many nodes vote at most: a majority of them is enough, so two of five may
// be away.
const MaxEgressVoters = 5

// EgressVoters is the row of table egress-voters: the nodes that vote on which node has an egress
// address that moves. The operator chooses them, one cluster has one set.
//
// Sets differ by one node from the set before, and the next one comes only when a majority has
// taken this one over. So any two majorities that can be in use at one time have a node in common.
type EgressVoters struct {
	Index uint32 `json:"index"` // always 0

	// Generation is of this set, greater than that of any former one. Votes of other generations
	// do not count.
	Generation uint32        `json:"generation"`
	Voters     []EgressVoter `json:"voters"` // at most MaxEgressVoters, each node once

	Error string `json:"error,omitempty"` // why there is no set, though there is an object

	// Object is what the operator has to know beside that to write the next set; nil at an agent.
	Object *ObjectVersion `json:"object,omitempty"`
}

// ObjectVersion is one version of an object of the cluster.
type ObjectVersion struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// EgressVoter is a node that votes.
type EgressVoter struct {
	Node string     `json:"node"`
	Addr netip.Addr `json:"addr"` // its underlay address
}

// Equal reports whether two rows say the same.
func (v *EgressVoters) Equal(o *EgressVoters) bool {
	return v.Index == o.Index && v.Generation == o.Generation && v.Error == o.Error &&
		slices.Equal(v.Voters, o.Voters)
}

// Majority is how many votes an address needs.
func (v *EgressVoters) Majority() int { return len(v.Voters)/2 + 1 }

// TableHeader implements [statedb.TableWritable].
func (*EgressVoters) TableHeader() []string { return []string{"Generation", "Voters", "Error"} }

// TableRow implements [statedb.TableWritable].
func (v *EgressVoters) TableRow() []string {
	return []string{
		strconv.FormatUint(uint64(v.Generation), 10), votersColumn(v.Voters), orDash(v.Error),
	}
}

func votersColumn(voters []EgressVoter) string {
	var texts []string
	for _, v := range voters {
		texts = append(texts, v.Node+" ("+v.Addr.String()+")")
	}
	return listColumn(texts, ", ")
}

var (
	egressVotersIndex = UniqueIndex("index", Uint32Keys,
		func(v *EgressVoters) uint32 { return v.Index })

	// EgressVotersByIndex queries the one row, whose index is 0.
	EgressVotersByIndex = egressVotersIndex.Query
)

var NewEgressVotersTable = Declare("egress-voters", egressVotersIndex)
