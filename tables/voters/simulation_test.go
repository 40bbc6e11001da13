// SPDX-License-Identifier: Apache-2.0

package voters

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

const (
	tick     = time.Minute
	voteTime = 4 // ticks for which votes in a former set are valid

	runs, steps = 60, 8000
)

// simulation is a cluster with operators whose views are old, and agents that learn of sets late.
type simulation struct {
	random *rand.Rand
	now    int // ticks
	broken broken

	machines  []*machine
	object    *tables.EgressVoters
	objects   map[uint32]*tables.EgressVoters // all that were ever written
	operators [2]view                         // what each of them sees
}

// broken has the operators, or the agents, break a rule.
type broken int

const (
	sound    broken = iota
	unacked         // they do not wait for acknowledgements
	twoNodes        // they add or remove two nodes at once
	blind           // they replace an object that they have not seen
	hasty           // agents acknowledge a step while votes in the former set are valid
	direct          // the former set does not go before the next one comes
)

// machine is a node with its agent. It goes on by the set that it knows when it is cut off, which
// to the operators looks as if it were lost.
type machine struct {
	node     *tables.Node // nil: deleted, for good
	isCutOff bool
	taken    uint32            // the generation that it acts by
	since    int               // when it has begun to
	given    map[uint32]ballot // in former sets, by their numbers
	report   uint32            // what its NodeReport says
}

// ballot are votes in a set that are valid until some time.
type ballot struct {
	set   tables.VoterSet
	until int
}

func newSimulation(seed uint64, b broken) *simulation {
	s := &simulation{
		random: rand.New(rand.NewPCG(seed, 0)), broken: b, objects: map[uint32]*tables.EgressVoters{},
	}
	for range 1 + s.random.IntN(7) {
		s.add()
	}
	return s
}

func (s *simulation) time() time.Time { return time.Unix(0, 0).Add(time.Duration(s.now) * tick) }

func (s *simulation) addr() netip.Addr {
	a := [4]byte{10}
	for i := range a[1:] {
		a[i+1] = byte(s.random.IntN(256))
	}
	return netip.AddrFrom4(a)
}

func (s *simulation) add() {
	s.machines = append(s.machines, &machine{
		node: &tables.Node{
			Name: fmt.Sprint("node-", len(s.machines)), InternalIPs: []netip.Addr{s.addr()}, Ready: true,
			Labels: map[string]string{zoneLabel: fmt.Sprint(s.random.IntN(3))},
			Times:  &tables.NodeTimes{Created: s.time(), Ready: s.time()},
		},
		given: map[uint32]ballot{},
	})
}

// step has one thing happen.
func (s *simulation) step() {
	m := s.machines[s.random.IntN(len(s.machines))]
	switch s.random.IntN(20) {
	case 0:
		s.now++
	case 3:
		if m.isCutOff || s.random.IntN(4) == 0 {
			s.change(m)
		}
	case 1, 2, 4, 5, 6, 7:
		s.take(m)
	case 8, 9, 10, 11:
		if !m.isCutOff && (s.now-m.since > voteTime || s.broken == hasty) {
			m.report = m.taken
		}
	case 12: // the agent restarts
		if !m.isCutOff {
			m.report, m.since = 0, s.now
		}
	case 13, 14, 15:
		s.refresh(&s.operators[s.random.IntN(2)])
	default:
		s.act(&s.operators[s.random.IntN(2)])
	}
}

// change has something happen to a node.
func (s *simulation) change(m *machine) {
	if m.node == nil {
		if s.present() < 7 {
			s.add()
		}
		return
	}
	n, times := *m.node, *m.node.Times
	n.Times = &times
	switch lasting := s.random.IntN(3) == 0 && s.spares(n.Name); {
	case !lasting && m.isCutOff:
		m.isCutOff, n.Ready, times.Ready = false, true, s.time()
	case !lasting:
		m.isCutOff, n.Ready, times.Ready = true, false, s.time()
	case s.random.IntN(2) > 0:
		n.InternalIPs = []netip.Addr{s.addr()}
	case s.present() > 1:
		m.node, m.isCutOff = nil, true
		return
	}
	m.node = &n
}

// spares reports whether a majority of the voters is there without a node: or else there is most
// likely no set after this one.
func (s *simulation) spares(name string) bool {
	if s.object == nil {
		return true
	}
	left := 0
	for _, v := range s.object.Last().Voters {
		for _, m := range s.machines {
			if m.node != nil && m.node.Name == v.Node && v.Node != name && m.node.UnderlayIP() == v.Addr {
				left++
			}
		}
	}
	return left >= s.object.Last().Majority()
}

func (s *simulation) present() (count int) {
	for _, m := range s.machines {
		if m.node != nil {
			count++
		}
	}
	return count
}

// take has a machine learn of a step, which need not be the last one.
func (s *simulation) take(m *machine) {
	if s.object == nil || m.isCutOff || m.taken >= s.object.Generation {
		return
	}
	for _, set := range s.setsOf(m) {
		m.given[set.Number] = ballot{set, s.now + voteTime}
	}
	m.taken += 1 + s.random.Uint32N(s.object.Generation-m.taken)
	for s.objects[m.taken] == nil { // operators that break rules leave generations out
		m.taken++
	}
	m.since = s.now
}

// setsOf are the sets in which a machine votes, if it is one of their voters.
func (s *simulation) setsOf(m *machine) []tables.VoterSet {
	if m.taken == 0 {
		return nil
	}
	return s.objects[m.taken].Sets
}

// validOf are the sets of which it may have valid votes.
func (s *simulation) validOf(m *machine) []tables.VoterSet {
	sets := slices.Clone(s.setsOf(m))
	for number, b := range m.given {
		if b.until <= s.now {
			delete(m.given, number)
			continue
		}
		sets = append(sets, b.set)
	}
	return sets
}

// refresh has an operator see a part of what is.
func (s *simulation) refresh(o *view) {
	o.now = s.time()
	part := s.random.IntN(3)
	switch part {
	case 0:
		o.set = s.object
		return
	case 1:
		o.acked = map[string]uint32{}
	default:
		o.nodes = nil
	}
	for _, m := range s.machines {
		switch {
		case m.node == nil:
		case part == 1:
			o.acked[m.node.Name] = m.report
		default:
			o.nodes = append(o.nodes, node{m.node, s.random.IntN(2) == 0})
		}
	}
}

// act has an operator write what it wants, if the object is the one that it has seen.
func (s *simulation) act(o *view) {
	v := *o
	if v.set != nil && s.broken == unacked {
		v.acknowledgeAll()
	}
	next := v.row()
	if next.Status.Kind == reconciler.StatusKindDone || next.Problem != "" {
		return
	}
	written := &tables.EgressVoters{
		Generation: next.Generation, Since: s.time(), Sets: slices.Clone(next.Sets),
	}
	if v.set != nil && len(next.Sets) > 1 && s.broken == twoNodes {
		v.set = &tables.EgressVoters{Generation: 1, Sets: next.Sets[1:]}
		v.acknowledgeAll()
		if again := v.decide(); again.problem == "" {
			last := len(again.sets) - 1
			written.Sets[1].Voters = again.sets[last].Voters
		}
	}
	if v.set != nil && len(v.set.Sets) > 1 && s.broken == direct {
		v.set = &tables.EgressVoters{Generation: v.set.Generation, Sets: v.set.Sets[1:]}
		if again := v.decide(); again.problem == "" {
			written.Sets = again.sets
		}
	}
	isSeen := s.object == o.set
	if !isSeen && (s.broken != blind || s.object == nil || next.Generation < s.object.Generation) {
		return
	}
	written.Object = &tables.ObjectVersion{ResourceVersion: strconv.Itoa(s.now)}
	s.object, s.objects[written.Generation] = written, written
}

func (v *view) acknowledgeAll() {
	v.acked = map[string]uint32{}
	for _, voter := range v.set.Last().Voters {
		v.acked[voter.Node] = math.MaxUint32
	}
}

// check returns an error if two disjoint majorities can be in use now.
func (s *simulation) check() error {
	type used struct {
		tables.VoterSet
		by []string // voters that vote in it, or whose votes in it are valid
	}
	sets := map[uint32]*used{}
	for i, m := range s.machines {
		for _, set := range s.validOf(m) {
			name := fmt.Sprint("node-", i)
			if sets[set.Number] == nil {
				sets[set.Number] = &used{VoterSet: set}
			}
			u := sets[set.Number]
			if set.Place(name) >= 0 && !slices.Contains(u.by, name) {
				u.by = append(u.by, name)
			}
		}
	}
	for _, a := range sets {
		for _, b := range sets {
			if a.Number >= b.Number || len(a.by) < a.Majority() || len(b.by) < b.Majority() {
				continue
			}
			both := 0
			for _, name := range a.by {
				if slices.Contains(b.by, name) {
					both++
				}
			}
			// How many of the nodes that both have each needs to be a majority.
			needs := max(0, a.Majority()-(len(a.by)-both)) + max(0, b.Majority()-(len(b.by)-both))
			if needs <= both {
				return fmt.Errorf("two majorities are in use: of %v by %v, and of %v by %v",
					a.VoterSet, a.by, b.VoterSet, b.by)
			}
		}
	}
	return nil
}

// run returns the greatest generation.
func (s *simulation) run() (generation uint32, err error) {
	for range steps {
		before := s.object
		s.step()
		if err := s.check(); err != nil {
			return 0, err
		}
		if s.object != before && s.broken == sound {
			if err := follows(before, s.object); err != nil {
				return 0, err
			}
		}
	}
	if s.object == nil {
		return 0, nil
	}
	return s.object.Generation, nil
}

// follows returns an error unless an object is one that may follow.
func follows(a, b *tables.EgressVoters) error {
	if a == nil {
		return nil
	}
	last, next := a.Last(), b.Last()
	changed := 0
	for _, v := range next.Voters {
		if !slices.Contains(last.Voters, v) {
			changed++
		}
	}
	for _, v := range last.Voters {
		if !slices.Contains(next.Voters, v) {
			changed++
		}
	}
	isStep := changed == 1 && len(b.Sets) == 2 && b.Sets[0].Equal(last)
	if len(a.Sets) == 2 {
		isStep = changed == 0 && len(b.Sets) == 1
	}
	if b.Generation != a.Generation+1 || !isStep || len(next.Voters) > tables.MaxEgressVoters {
		return fmt.Errorf("after %v comes %v", a.TableRow(), b.TableRow())
	}
	return nil
}

// Whatever happens to nodes, and however old what operators and agents know, no two disjoint
// majorities are in use at one time.
func TestMajoritiesIntersect(t *testing.T) {
	var generations uint32
	for seed := range uint64(runs) {
		generation, err := newSimulation(seed, sound).run()
		require.NoError(t, err, "seed %d", seed)
		generations += generation
	}
	require.Greater(t, generations, uint32(10*runs), "sets change too rarely to show anything")
}

// The same finds operators and agents that break one of the rules.
func TestBrokenRulesAreFound(t *testing.T) {
	for name, b := range map[string]broken{
		"acknowledgement": unacked, "one node": twoNodes, "version": blind, "rest": hasty,
		"two steps": direct,
	} {
		var found error
		for seed := uint64(0); found == nil && seed < 4*runs; seed++ {
			_, found = newSimulation(seed, b).run()
		}
		require.ErrorContains(t, found, "two majorities are in use", name)
	}
}
