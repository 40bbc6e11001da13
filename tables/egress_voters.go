// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxEgressVoters is how many nodes vote at most: a majority of them is enough, so two of five may
// be away.
const MaxEgressVoters = 5

// EgressVoters is the row of table egress-voters: the nodes that vote on which node has an egress
// address that moves. The operator chooses them.
//
// There is one set of voters, or two while one replaces the other: then an address is at the node
// for which a majority of either set votes. The two differ by one node, and there are no two again
// before votes of the former set have run out. So any two majorities that can be in use at one time
// have a node in common.
type EgressVoters struct {
	Index uint32 `json:"index"` // always 0

	// Generation is greater than that of any former object.
	Generation uint32     `json:"generation"`
	Since      time.Time  `json:"since"` // when the operator has written that
	Sets       []VoterSet `json:"sets"`  // one, or the former one and the next one

	Error string `json:"error,omitempty"` // why there is no set, though there is an object

	// Object is what the operator has to know beside that to write the next set; nil at an agent.
	Object *ObjectVersion `json:"object,omitempty"`
}

// VoterSet is a set of nodes that vote.
type VoterSet struct {
	Number uint32        `json:"number"` // one more than that of the set before
	Voters []EgressVoter `json:"voters"` // at most MaxEgressVoters, each node once, by name
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
		v.Since.Equal(o.Since) && slices.EqualFunc(v.Sets, o.Sets, VoterSet.Equal)
}

// Last returns the set that stays, an empty one if there is none.
func (v *EgressVoters) Last() VoterSet {
	if len(v.Sets) == 0 {
		return VoterSet{}
	}
	return v.Sets[len(v.Sets)-1]
}

// Of returns the sets in which a node votes.
func (v *EgressVoters) Of(node string) (sets []VoterSet) {
	for _, set := range v.Sets {
		if set.Place(node) >= 0 {
			sets = append(sets, set)
		}
	}
	return sets
}

// Equal reports whether two sets are the same.
func (s VoterSet) Equal(o VoterSet) bool {
	return s.Number == o.Number && slices.Equal(s.Voters, o.Voters)
}

// Majority is how many votes of the set an address needs.
func (s VoterSet) Majority() int { return len(s.Voters)/2 + 1 }

// Place returns the place of a node among the voters, -1 if it is none.
func (s VoterSet) Place(node string) int {
	return slices.IndexFunc(s.Voters, func(v EgressVoter) bool { return v.Node == node })
}

// TableHeader implements [statedb.TableWritable].
func (*EgressVoters) TableHeader() []string {
	return []string{"Generation", "Voters", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (v *EgressVoters) TableRow() []string {
	return []string{
		strconv.FormatUint(uint64(v.Generation), 10), setsColumn(v.Sets), orDash(v.Error),
	}
}

// setsColumn returns a text like "3: node-1 (10.0.0.1), node-2 (10.0.0.2); 4: node-1 (10.0.0.1)".
func setsColumn(sets []VoterSet) string {
	var texts []string
	for _, set := range sets {
		var voters []string
		for _, v := range set.Voters {
			voters = append(voters, v.Node+" ("+v.Addr.String()+")")
		}
		texts = append(texts, fmt.Sprint(set.Number, ": ", strings.Join(voters, ", ")))
	}
	return listColumn(texts, "; ")
}

var (
	egressVotersIndex = UniqueIndex("index", Uint32Keys,
		func(v *EgressVoters) uint32 { return v.Index })

	// EgressVotersByIndex queries the one row, whose index is 0.
	EgressVotersByIndex = egressVotersIndex.Query
)

// NewEgressVotersTable creates table egress-voters.
var NewEgressVotersTable = Declare("egress-voters", egressVotersIndex)
