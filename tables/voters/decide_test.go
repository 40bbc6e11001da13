// SPDX-License-Identifier: Apache-2.0

package voters

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

var now = time.Date(2025, 1, 10, 12, 0, 0, 0, time.UTC)

// nodeOf returns a ready node, the older the lower its number is, with an address by that.
func nodeOf(i int, change ...func(n *node)) node {
	created := now.Add(time.Duration(i-100) * time.Hour)
	n := node{Node: &tables.Node{
		Name: fmt.Sprint("node-", i), Ready: true,
		InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})},
		Times:       &tables.NodeTimes{Created: created, Ready: created},
	}}
	for _, c := range change {
		c(&n)
	}
	return n
}

func gateway(n *node) { n.isGateway = true }

func inZone(zone string) func(*node) {
	return func(n *node) { n.Labels = map[string]string{zoneLabel: zone} }
}

// notReady has a node be not ready for some time.
func notReady(since time.Duration) func(*node) {
	return func(n *node) { n.Ready, n.Times.Ready = false, now.Add(-since) }
}

func moved(n *node) { n.InternalIPs = []netip.Addr{netip.MustParseAddr("10.9.9.9")} }

func nodesOf(count int) (nodes []node) {
	for i := range count {
		nodes = append(nodes, nodeOf(i+1))
	}
	return nodes
}

// with returns nodes of which some are otherwise.
func with(nodes []node, changed ...node) []node {
	nodes = slices.Clone(nodes)
	for _, c := range changed {
		i := slices.IndexFunc(nodes, func(n node) bool { return n.Name == c.Name })
		nodes[i] = c
	}
	return nodes
}

// setOf returns an object of a generation, with one set, of the nodes of some numbers.
func setOf(generation uint32, numbers ...int) *tables.EgressVoters {
	set := tables.VoterSet{Number: generation}
	for _, i := range numbers {
		n := nodeOf(i)
		set.Voters = append(set.Voters, tables.EgressVoter{Node: n.Name, Addr: n.UnderlayIP()})
	}
	return &tables.EgressVoters{Generation: generation, Sets: []tables.VoterSet{set}}
}

// then returns the object that follows, with a set of the nodes of some numbers beside the one
// that there is.
func then(set *tables.EgressVoters, numbers ...int) *tables.EgressVoters {
	next := setOf(set.Generation+1, numbers...)
	next.Sets[0].Number = set.Last().Number + 1
	next.Sets = []tables.VoterSet{set.Last(), next.Sets[0]}
	next.Since = now
	return next
}

// settled returns the object that follows, with the last set alone.
func settled(set *tables.EgressVoters) *tables.EgressVoters {
	return &tables.EgressVoters{
		Generation: set.Generation + 1, Sets: []tables.VoterSet{set.Last()},
	}
}

// ackedBy has nodes of some numbers have acknowledged a generation.
func ackedBy(generation uint32, numbers ...int) map[string]uint32 {
	acked := map[string]uint32{}
	for _, i := range numbers {
		acked[fmt.Sprint("node-", i)] = generation
	}
	return acked
}

func TestFirstSet(t *testing.T) {
	for name, c := range map[string]struct {
		nodes []node
		acked map[string]uint32
		want  *tables.EgressVoters
	}{
		"one node":    {nodes: nodesOf(1), want: setOf(1, 1)},
		"two nodes":   {nodes: nodesOf(2), want: setOf(1, 1)},
		"three":       {nodes: nodesOf(3), want: setOf(1, 1, 2, 3)},
		"four":        {nodes: nodesOf(4), want: setOf(1, 1, 2, 3)},
		"five":        {nodes: nodesOf(5), want: setOf(1, 1, 2, 3, 4, 5)},
		"the oldest":  {nodes: nodesOf(9), want: setOf(1, 1, 2, 3, 4, 5)},
		"ready ones":  {nodes: with(nodesOf(6), nodeOf(2, notReady(0))), want: setOf(1, 1, 3, 4, 5, 6)},
		"an odd part": {nodes: with(nodesOf(5), nodeOf(2, notReady(0))), want: setOf(1, 1, 3, 4)},
		"no node":     {want: &tables.EgressVoters{}},
		"not ready":   {nodes: []node{nodeOf(1, notReady(0))}, want: &tables.EgressVoters{}},
		"gateways first": {
			nodes: with(nodesOf(9), nodeOf(8, gateway), nodeOf(9, gateway)), want: setOf(1, 1, 2, 3, 8, 9),
		},
		"zones": {
			nodes: []node{
				nodeOf(1, inZone("a")), nodeOf(2, inZone("a")), nodeOf(3, inZone("b")), nodeOf(4, inZone("c")),
			},
			want: setOf(1, 1, 3, 4),
		},
		"after one that was deleted": {
			nodes: nodesOf(1), acked: ackedBy(7, 1, 4), want: setOf(9, 1),
		},
		"without address": {
			nodes: with(nodesOf(2), nodeOf(1, func(n *node) { n.InternalIPs = nil })), want: setOf(1, 2),
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := (&view{now: now, nodes: c.nodes, acked: c.acked}).decide()
			require.Equal(t, c.want.Sets, d.sets)
			if len(d.sets) > 0 {
				require.Equal(t, c.want.Generation, d.generation)
			} else {
				require.Equal(t, "for a node that is ready", d.waits)
			}
		})
	}
}

func TestNextSet(t *testing.T) {
	one, five := setOf(3, 1), setOf(3, 1, 2, 3, 4, 5)
	all := ackedBy(3, 1, 2, 3, 4, 5)
	two := then(one, 1, 2)
	old := then(one, 1, 2)
	old.Since = now.Add(-patience)
	young := then(one, 1, 2)
	young.Since = now.Add(tables.ClockInterval - time.Second)
	ahead := then(one, 1, 2)
	ahead.Since = now.Add(patience)
	for name, c := range map[string]struct {
		set     *tables.EgressVoters
		nodes   []node
		acked   map[string]uint32
		want    *tables.EgressVoters
		waits   string
		problem string
	}{
		"nothing to do": {set: five, nodes: nodesOf(5), want: five},
		"fit ones stay": {
			set: setOf(3, 5, 6, 7, 8, 9), nodes: nodesOf(9), want: setOf(3, 5, 6, 7, 8, 9),
		},
		"not ready a bit": {
			set: five, nodes: with(nodesOf(6), nodeOf(1, notReady(4*time.Minute))), want: five,
		},
		"one more": {set: setOf(3, 1), nodes: nodesOf(3), acked: all, want: two},
		"to an odd number": {
			set: setOf(3, 1, 2), nodes: nodesOf(3), acked: all, want: then(setOf(3, 1, 2), 1, 2, 3),
		},
		"the former set goes": {
			set: two, nodes: nodesOf(3), acked: ackedBy(4, 1, 2), want: settled(two),
		},
		"not before a majority knows": {
			set: two, nodes: nodesOf(3), acked: ackedBy(4, 1), want: two,
			waits: "for a majority to take over generation 4, beside node-2",
		},
		"nor before gateways know": {
			set: two, nodes: with(nodesOf(4), nodeOf(3, gateway), nodeOf(4, gateway)),
			acked: ackedBy(4, 1, 2, 4), want: two,
			waits: "up to 5m0s for gateways to take over generation 4: node-3",
		},
		"but for those that are not ready": {
			set: two, nodes: with(nodesOf(3), nodeOf(3, gateway, notReady(0))),
			acked: ackedBy(4, 1, 2), want: settled(two),
		},
		"after five minutes": {
			set: old, nodes: with(nodesOf(3), nodeOf(3, gateway)), acked: ackedBy(4, 1, 2),
			want: settled(two),
		},
		"nor just after it was written, as the clock is late": {
			set: young, nodes: with(nodesOf(3), nodeOf(3, gateway)), acked: ackedBy(4, 1, 2), want: two,
			waits: "up to 5m0s for gateways to take over generation 4: node-3",
		},
		"by a clock that is far ahead": {
			set: ahead, nodes: with(nodesOf(3), nodeOf(3, gateway)), acked: ackedBy(4, 1, 2),
			want: settled(two),
		},
		"next only when the former has gone": {
			set: settled(two), nodes: nodesOf(3), acked: ackedBy(5, 1, 2),
			want: then(settled(two), 1, 2, 3),
		},
		"not even": {
			set: setOf(3, 1), nodes: with(nodesOf(3), nodeOf(3, notReady(0))), want: setOf(3, 1),
		},
		"away for long": {
			set: five, nodes: with(nodesOf(6), nodeOf(4, notReady(5*time.Minute))), acked: all,
			want: then(five, 1, 2, 3, 5),
		},
		"away, no other node": {
			set: five, nodes: with(nodesOf(5), nodeOf(4, notReady(5*time.Minute))), acked: all, want: five,
		},
		"gone": {set: five, nodes: nodesOf(4), acked: all, want: then(five, 1, 2, 3, 4)},
		"gone, and one too many": {
			set: setOf(3, 1, 2, 3, 4), nodes: nodesOf(4), acked: all,
			want: then(setOf(3, 1, 2, 3, 4), 1, 2, 3),
		},
		"no gateway goes": {
			set: setOf(3, 1, 2, 3, 4), nodes: with(nodesOf(4), nodeOf(4, gateway)), acked: all,
			want: then(setOf(3, 1, 2, 3, 4), 1, 2, 4),
		},
		"another address": {
			set: five, nodes: with(nodesOf(5), nodeOf(2, moved)), acked: all,
			want: then(five, 1, 3, 4, 5),
		},
		"late acknowledgements": {
			set: five, nodes: nodesOf(4), acked: ackedBy(2, 1, 2, 3, 4, 5), want: five,
			waits: "for a majority to take over generation 3, beside node-1, node-2, node-3, node-4, node-5",
		},
		"two of five": {
			set: five, nodes: nodesOf(4), acked: ackedBy(3, 1, 2, 6, 7), want: five,
			waits: "for a majority to take over generation 3, beside node-3, node-4, node-5",
		},
		"three of five": {
			set: five, nodes: nodesOf(4), acked: ackedBy(3, 1, 2, 5),
			want: then(five, 1, 2, 3, 4),
		},
		"the majority is lost": {
			set: setOf(3, 1, 2, 3), acked: all, want: setOf(3, 1, 2, 3),
			nodes:   with(nodesOf(5), nodeOf(1, notReady(time.Hour)), nodeOf(3, moved)),
			problem: "of 3 voters these are gone, not ready or of another address: node-1, node-3",
		},
		"a wrong object": {
			set: &tables.EgressVoters{Error: "data.voters: required"}, nodes: nodesOf(3),
			want: &tables.EgressVoters{}, problem: "the set cannot be read: data.voters: required",
		},
		"the last generation": {
			set: setOf(math.MaxUint32, 1), nodes: nodesOf(3), acked: ackedBy(math.MaxUint32, 1),
			want: setOf(math.MaxUint32, 1), problem: "there are no more generations",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := (&view{now: now, set: c.set, nodes: c.nodes, acked: c.acked}).decide()
			require.Equal(t, decision{
				generation: c.want.Generation, sets: c.want.Sets, waits: c.waits, problem: c.problem,
			}, d)
		})
	}
}

// An address that changes is a node that goes and one that comes, in four steps.
func TestAddressChanges(t *testing.T) {
	nodes := with(nodesOf(3), nodeOf(2, moved))
	v := view{now: now, set: setOf(3, 1, 2, 3), nodes: nodes, acked: ackedBy(9, 1, 2, 3)}
	for _, want := range []string{
		"3: node-1 (10.0.0.1), node-2 (10.0.0.2), node-3 (10.0.0.3); " +
			"4: node-1 (10.0.0.1), node-3 (10.0.0.3)",
		"4: node-1 (10.0.0.1), node-3 (10.0.0.3)",
		"4: node-1 (10.0.0.1), node-3 (10.0.0.3); " +
			"5: node-1 (10.0.0.1), node-2 (10.9.9.9), node-3 (10.0.0.3)",
		"5: node-1 (10.0.0.1), node-2 (10.9.9.9), node-3 (10.0.0.3)",
	} {
		d := v.decide()
		require.Equal(t, v.set.Generation+1, d.generation)
		v.set = &tables.EgressVoters{Generation: d.generation, Sets: d.sets}
		require.Equal(t, want, v.set.TableRow()[1])
	}
}
