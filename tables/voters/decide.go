// SPDX-License-Identifier: Apache-2.0

package voters

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-net/sluice/tables"
)

// patience is for how long a voter may be not ready before another node takes its place, and an
// agent of a gateway not take over a set: longer than a restart takes.
const patience = 5 * time.Minute

// zoneLabel is the label of a Node that says in which zone it is.
const zoneLabel = "topology.kubernetes.io/zone"

// view is what the next set follows from.
type view struct {
	now   time.Time
	set   *tables.EgressVoters // the object, nil if there is none
	nodes []node               // that run agents
	acked map[string]uint32    // the generation that a node has acknowledged
}

type node struct {
	*tables.Node
	isGateway bool // a pool selects it
}

// decision is what the object shall say: what it does, or the next set.
type decision struct {
	generation uint32
	sets       []tables.VoterSet
	waits      string
	problem    string
}

// decide returns the next sets if there are to be others and the rules permit them.
func (v *view) decide() decision {
	if v.set == nil {
		return v.first()
	}
	stays := decision{generation: v.set.Generation, sets: v.set.Sets}
	if v.set.Error != "" {
		stays.problem = "the set cannot be read: " + v.set.Error
		return stays
	}
	last, unfit := v.set.Last(), v.unfit()
	if len(last.Voters)-len(unfit) < last.Majority() {
		stays.problem = fmt.Sprintf("of %d voters these are gone, not ready or of another address: %s",
			len(last.Voters), strings.Join(unfit, ", "))
		return stays
	}
	next := v.next(unfit)
	if next == nil {
		return stays
	}
	if missing := v.missing(); len(missing) > len(last.Voters)-last.Majority() {
		stays.waits = fmt.Sprintf("for a majority to take over generation %d, beside %s",
			v.set.Generation, strings.Join(missing, ", "))
		return stays
	}
	if behind := v.behind(); len(behind) > 0 {
		stays.waits = fmt.Sprintf("up to %s for gateways to take over generation %d: %s",
			patience, v.set.Generation, strings.Join(behind, ", "))
		return stays
	}
	if v.set.Generation == math.MaxUint32 || last.Number == math.MaxUint32 {
		stays.problem = "there are no more generations"
		return stays
	}
	return decision{generation: v.set.Generation + 1, sets: next}
}

// next returns the sets that follow: the last one alone, or beside it one that differs; nil if
// those that there are stay.
func (v *view) next(unfit []string) []tables.VoterSet {
	last := v.set.Last()
	if len(v.set.Sets) > 1 {
		return []tables.VoterSet{last}
	}
	if voters := v.change(unfit); voters != nil {
		return []tables.VoterSet{last, {Number: last.Number + 1, Voters: voters}}
	}
	return nil
}

// first returns the first set, whose generation is greater than that of any object before. One that
// was deleted may have been one ahead of what is acknowledged. No number of a set is greater than
// the generation.
func (v *view) first() decision {
	d := decision{generation: 1}
	for _, generation := range v.acked {
		if generation > math.MaxUint32-2 {
			return decision{problem: "there are no more generations"}
		}
		if generation > 0 {
			d.generation = max(d.generation, generation+2)
		}
	}
	candidates := v.candidates(nil)
	var voters []tables.EgressVoter
	for range odd(min(wanted(len(v.nodes)), len(candidates))) {
		voters = append(voters, v.best(candidates, voters))
		candidates = v.candidates(voters)
	}
	if len(voters) == 0 {
		return decision{waits: "for a node that is ready"}
	}
	slices.SortFunc(voters, byName)
	d.sets = []tables.VoterSet{{Number: d.generation, Voters: voters}}
	return d
}

// change returns the voters of the next set, which differ by one node from those of the last; nil
// if these are to stay. An unfit voter stays too while no other node can take its place, unless it
// cannot be a voter again as it is.
func (v *view) change(unfit []string) []tables.EgressVoter {
	voters := v.set.Last().Voters
	candidates := v.candidates(voters)
	most := min(wanted(len(v.nodes)), len(voters)+len(candidates))
	for _, name := range unfit {
		if len(candidates) > 0 || !v.isThere(voters, name) {
			return without(voters, name)
		}
	}
	switch goal := odd(most); {
	case len(voters) > goal && len(unfit) > 0:
		return without(voters, unfit[0])
	case len(voters) > goal:
		return without(voters, v.last())
	case len(voters) < goal:
		next := append(slices.Clone(voters), v.best(candidates, voters))
		slices.SortFunc(next, byName)
		return next
	}
	return nil
}

// wanted is how many voters a cluster of so many nodes is to have.
func wanted(nodes int) int {
	switch {
	case nodes <= 2:
		return 1
	case nodes <= 4:
		return 3
	}
	return tables.MaxEgressVoters
}

// odd returns the greatest odd number that is not greater: one more voter than that makes a greater
// majority, but no more of them may be lost.
func odd(n int) int { return n - (n+1)%2*min(n, 1) }

// missing are the voters of the last set that have not acknowledged the object.
func (v *view) missing() (names []string) {
	for _, voter := range v.set.Last().Voters {
		if v.acked[voter.Node] < v.set.Generation {
			names = append(names, voter.Node)
		}
	}
	return names
}

// behind are the gateways that go by the former set and may have an address by its votes, while
// that stays beside the last one for them.
func (v *view) behind() (names []string) {
	// Below 0 if the clock of the operator that has written that was ahead, and just after it has:
	// v.now is late by up to [tables.ClockInterval].
	age := v.now.Sub(v.set.Since).Abs()
	if len(v.set.Sets) == 1 || age >= patience {
		return nil
	}
	for _, n := range v.nodes {
		if n.isGateway && n.Ready && v.acked[n.Name] < v.set.Generation {
			names = append(names, n.Name)
		}
	}
	return names
}

// unfit are the voters that are gone, not ready for long, or of another address.
func (v *view) unfit() (names []string) {
	for _, voter := range v.set.Last().Voters {
		n := v.named(voter.Node)
		if n == nil || n.UnderlayIP() != voter.Addr || !n.Ready && v.isAway(n.Node) {
			names = append(names, voter.Node)
		}
	}
	return names
}

// isAway reports whether a node that is not ready has been so for long.
func (v *view) isAway(n *tables.Node) bool {
	var since time.Time
	if n.Times != nil {
		since = n.Times.Ready
		if since.IsZero() {
			since = n.Times.Created
		}
	}
	return v.now.Sub(since) >= patience
}

// isThere reports whether a voter has its address.
func (v *view) isThere(voters []tables.EgressVoter, name string) bool {
	n := v.named(name)
	return n != nil && slices.Contains(voters, tables.EgressVoter{Node: name, Addr: n.UnderlayIP()})
}

func (v *view) named(name string) *node {
	i := slices.IndexFunc(v.nodes, func(n node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &v.nodes[i]
}

// candidates are the nodes that can be voters beside some: those that are ready, and whose name
// and address no voter has.
func (v *view) candidates(voters []tables.EgressVoter) (candidates []node) {
	for _, n := range v.nodes {
		addr := n.UnderlayIP()
		if n.Ready && addr.IsValid() && !slices.ContainsFunc(voters, func(v tables.EgressVoter) bool {
			return v.Node == n.Name || v.Addr == addr
		}) {
			candidates = append(candidates, n)
		}
	}
	return candidates
}

// best returns the candidate to add to some voters: a gateway, then of the zone with the fewest
// voters, then the oldest.
func (v *view) best(candidates []node, voters []tables.EgressVoter) tables.EgressVoter {
	zones := map[string]int{}
	for _, voter := range voters {
		if n := v.named(voter.Node); n != nil {
			zones[n.Labels[zoneLabel]]++
		}
	}
	n := slices.MinFunc(candidates, func(a, b node) int {
		return cmp.Or(
			compareGateways(a, b), cmp.Compare(zones[a.Labels[zoneLabel]], zones[b.Labels[zoneLabel]]),
			compareAges(a, b),
		)
	})
	return tables.EgressVoter{Node: n.Name, Addr: n.UnderlayIP()}
}

// last returns the voter to remove of a set of which all are fit: one that is no gateway, then the
// youngest.
func (v *view) last() string {
	var voters []node
	for _, voter := range v.set.Last().Voters {
		voters = append(voters, *v.named(voter.Node))
	}
	return slices.MaxFunc(voters, func(a, b node) int {
		return cmp.Or(compareGateways(a, b), compareAges(a, b))
	}).Name
}

func compareGateways(a, b node) int {
	switch {
	case a.isGateway == b.isGateway:
		return 0
	case a.isGateway:
		return -1
	}
	return 1
}

func compareAges(a, b node) int {
	created := func(n node) time.Time {
		if n.Times == nil {
			return time.Time{}
		}
		return n.Times.Created
	}
	return cmp.Or(created(a).Compare(created(b)), strings.Compare(a.Name, b.Name))
}

func without(voters []tables.EgressVoter, name string) []tables.EgressVoter {
	return slices.DeleteFunc(slices.Clone(voters),
		func(v tables.EgressVoter) bool { return v.Node == name })
}
