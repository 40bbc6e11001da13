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
	voteTime = 4 // ticks for which votes of a former generation count

	runs, steps = 60, 8000
)

// simulation is a cluster with operators whose views are old, and agents that learn of sets late.
type simulation struct {
	random *rand.Rand
	now    int // ticks
	broken broken

	machines  []*machine
	object    *tables.EgressVoters
	sets      map[uint32]*tables.EgressVoters // all that were ever written
	operators [2]view                         // what each of them sees
}

// broken has the operators, or the agents, break a rule.
type broken int

const (
	sound    broken = iota
	unacked         // they do not wait for acknowledgements
	twoNodes        // they add or remove two nodes at once
	blind           // they replace an object that they have not seen
	hasty           // agents acknowledge a set while votes of the former one count
)

// machine is a node with its agent. It goes on by the set that it knows when it is cut off, which
// to the operators looks as if it were lost.
type machine struct {
	node     *tables.Node // nil: deleted, for good
	isCutOff bool
	taken    uint32         // the generation that it acts by
	since    int            // when it has begun to
	counts   map[uint32]int // until when votes count that it has given in former generations
	report   uint32         // what its NodeReport says
}

func newSimulation(seed uint64, b broken) *simulation {
	s := &simulation{
		random: rand.New(rand.NewPCG(seed, 0)), broken: b, sets: map[uint32]*tables.EgressVoters{},
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
		counts: map[uint32]int{},
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
	for _, v := range s.object.Voters {
		for _, m := range s.machines {
			if m.node != nil && m.node.Name == v.Node && v.Node != name && m.node.UnderlayIP() == v.Addr {
				left++
			}
		}
	}
	return left >= s.object.Majority()
}

func (s *simulation) present() (count int) {
	for _, m := range s.machines {
		if m.node != nil {
			count++
		}
	}
	return count
}

// take has a machine learn of a set, which need not be the last one.
func (s *simulation) take(m *machine) {
	if s.object == nil || m.isCutOff || m.taken >= s.object.Generation {
		return
	}
	m.counts[m.taken] = s.now + voteTime
	m.taken += 1 + s.random.Uint32N(s.object.Generation-m.taken)
	m.since = s.now
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
	written := &tables.EgressVoters{Generation: next.Generation, Voters: next.Voters}
	if v.set != nil && s.broken == twoNodes {
		v.set = written
		v.acknowledgeAll()
		if again := v.decide(); again.problem == "" {
			written.Voters = again.voters
		}
	}
	isSeen := s.object == o.set
	if !isSeen && (s.broken != blind || s.object == nil || next.Generation < s.object.Generation) {
		return
	}
	written.Object = &tables.ObjectVersion{ResourceVersion: strconv.Itoa(s.now)}
	s.object, s.sets[written.Generation] = written, written
}

func (v *view) acknowledgeAll() {
	v.acked = map[string]uint32{}
	for _, voter := range v.set.Voters {
		v.acked[voter.Node] = math.MaxUint32
	}
}

// inUse are the voters of a set that act by it, or whose votes of it count.
func (s *simulation) inUse(set *tables.EgressVoters) (names []string) {
	for i, m := range s.machines {
		name := fmt.Sprint("node-", i)
		is := func(v tables.EgressVoter) bool { return v.Node == name }
		counts := m.taken == set.Generation || m.counts[set.Generation] > s.now
		if counts && slices.ContainsFunc(set.Voters, is) {
			names = append(names, name)
		}
	}
	return names
}

// check returns an error if two disjoint majorities can be in use now.
func (s *simulation) check() error {
	type used struct {
		*tables.EgressVoters
		by []string
	}
	var all []used
	for _, set := range s.sets {
		if by := s.inUse(set); len(by) >= set.Majority() {
			all = append(all, used{set, by})
		}
	}
	for i, a := range all {
		for _, b := range all[:i] {
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
					a.TableRow(), a.by, b.TableRow(), b.by)
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

// follows returns an error unless a set is one that may follow.
func follows(a, b *tables.EgressVoters) error {
	if a == nil {
		return nil
	}
	added, removed := 0, 0
	for _, v := range b.Voters {
		if !slices.Contains(a.Voters, v) {
			added++
		}
	}
	for _, v := range a.Voters {
		if !slices.Contains(b.Voters, v) {
			removed++
		}
	}
	if b.Generation != a.Generation+1 || added+removed != 1 || len(b.Voters) > tables.MaxEgressVoters {
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
	require.Greater(t, generations, uint32(10*runs), "sets change too seldom to show anything")
}

// The same finds operators and agents that break one of the rules.
func TestBrokenRulesAreFound(t *testing.T) {
	for name, b := range map[string]broken{
		"acknowledgement": unacked, "one node": twoNodes, "version": blind, "rest": hasty,
	} {
		var found error
		for seed := uint64(0); found == nil && seed < 4*runs; seed++ {
			_, found = newSimulation(seed, b).run()
		}
		require.ErrorContains(t, found, "two majorities are in use", name)
	}
}
