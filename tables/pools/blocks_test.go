// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

var begin = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

func TestAssignBlocks(t *testing.T) {
	has, without := assignBlocks(nil, 3, []string{"a", "b"}, nil, begin)
	require.Equal(t, []tables.PortBlock{{Index: 0, Node: "a"}, {Index: 1, Node: "b"}}, has)
	require.Empty(t, without)

	// A block of a node that is gone rests, and is not the lowest free one meanwhile.
	has, _ = assignBlocks(has, 3, []string{"b", "c"}, nil, begin)
	require.Equal(t, []tables.PortBlock{
		{Index: 0, Node: "a", Released: begin}, {Index: 1, Node: "b"}, {Index: 2, Node: "c"},
	}, has)
	before := begin.Add(rest - time.Second)
	has, without = assignBlocks(has, 3, []string{"b", "c", "d"}, nil, before)
	require.Len(t, has, 3)
	require.Equal(t, begin, has[0].Released)
	require.Equal(t, []string{"d"}, without)

	// It is the node's again if that returns, or else another one's.
	again, without := assignBlocks(has, 3, []string{"a", "b", "c", "d"}, nil, begin.Add(rest))
	require.Equal(t, tables.PortBlock{Index: 0, Node: "a"}, again[0])
	require.Equal(t, []string{"d"}, without)
	has, without = assignBlocks(has, 3, []string{"b", "c", "d"}, nil, begin.Add(rest))
	require.Equal(t, tables.PortBlock{Index: 0, Node: "d"}, has[0])
	require.Empty(t, without)

	// One that was released by a clock of years ahead rests from now on, and not for years.
	has = []tables.PortBlock{{Index: 0, Node: "a", Released: begin.AddDate(9, 0, 0)}}
	has, _ = assignBlocks(has, 1, []string{"b"}, nil, begin)
	require.Equal(t, []tables.PortBlock{{Index: 0, Node: "a", Released: begin}}, has)
	has, _ = assignBlocks(has, 1, []string{"b"}, nil, begin.Add(rest))
	require.Equal(t, []tables.PortBlock{{Index: 0, Node: "b"}}, has)
}

// A node has as many blocks as it reports to want. One that it does not want is closed, opened
// again if it wants more meanwhile, and free as soon as it reports that no connection is left.
func TestAssignWanted(t *testing.T) {
	wants := func(blocks int, drained ...tables.DrainedBlock) tables.PoolPorts {
		return tables.PoolPorts{Blocks: blocks, Drained: drained}
	}
	nodes := []string{"a", "b", "c"}
	has, without := assignBlocks(nil, 15, nodes, reports{"a": wants(2), "b": wants(9)}, begin)
	require.Empty(t, without)
	require.Equal(t, []tables.PortBlock{
		{Index: 0, Node: "a"}, {Index: 1, Node: "b"}, {Index: 2, Node: "c"},
		{Index: 3, Node: "a"}, {Index: 4, Node: "b"}, {Index: 5, Node: "b"}, {Index: 6, Node: "b"},
	}, has)
	assign := func(told reports, after time.Duration) (of []string) {
		has, without = assignBlocks(has, 15, nodes, told, begin.Add(after))
		require.Empty(t, without)
		for _, b := range has {
			text := b.Node
			if !b.Closed.IsZero() {
				text += " " + b.Closed.Sub(begin).String()
			}
			of = append(of, text)
		}
		return of
	}
	given := []string{"a", "b", "c", "a", "b", "b", "b"}
	require.Equal(t, given, assign(nil, time.Minute), "what a node does not report does not change")
	told := reports{"a": wants(1), "b": wants(2)}
	closed := []string{"a", "b", "c", "a 2m0s", "b", "b 2m0s", "b 2m0s"}
	require.Equal(t, closed, assign(told, 2*time.Minute))
	require.Equal(t, closed, assign(told, 3*time.Hour), "until the node says that it is drained")

	told["a"] = wants(2, tables.DrainedBlock{Index: 3, Closed: begin})
	require.Equal(t, []string{"a", "b", "c", "a", "b", "b 2m0s", "b 2m0s"}, assign(told, 4*time.Hour))
	told["a"] = wants(1)
	drained := tables.DrainedBlock{Index: 5, Closed: begin.Add(2 * time.Minute)}
	told["b"] = wants(2, drained, tables.DrainedBlock{Index: 6, Closed: begin.Add(time.Minute)})
	require.Equal(t, []string{"a", "b", "c", "a 5h0m0s", "b", "b 2m0s"}, assign(told, 5*time.Hour))
	require.Equal(t, 6, has[5].Index, "a report of a former closing counts for nothing")

	// A node that is gone keeps the long rest, whatever it has reported.
	nodes = []string{"a", "c"}
	told["b"] = wants(1, tables.DrainedBlock{Index: 6, Closed: begin.Add(2 * time.Minute)})
	assign(told, 6*time.Hour)
	require.Equal(t, begin.Add(6*time.Hour), has[5].Released)
	nodes = []string{"a", "b", "c"}
	require.Equal(t, []string{"a", "b", "c", "a 5h0m0s", "b 7h0m0s"}, assign(told, 7*time.Hour))
}

// The last blocks are for nodes that have none.
func TestReservedBlocks(t *testing.T) {
	nodes, told := []string{"a", "b", "c", "d"}, reports{}
	for _, n := range nodes {
		told[n] = tables.PoolPorts{Blocks: 4}
	}
	has, _ := assignBlocks(nil, 15, nodes, told, begin)
	require.Len(t, has, 14)
	own := map[string]int{}
	for _, b := range has {
		own[b.Node]++
	}
	require.Equal(t, map[string]int{"a": 4, "b": 4, "c": 3, "d": 3}, own)
	has, without := assignBlocks(has, 15, append(nodes, "e", "f"), told, begin)
	require.Len(t, has, 15)
	require.Equal(t, []string{"f"}, without)
}

// That no node has a block is told once, and since when is kept.
func TestNoFreeBlock(t *testing.T) {
	p := &tables.EgressIPPool{
		Name: "p", PortsPerBlock: 4096, Object: &tables.PoolObject{ResourceVersion: "1"},
	}
	var nodes []string
	for i := range 20 {
		nodes = append(nodes, fmt.Sprintf("node-%02d", i))
	}
	s := row(p, nil, nodes, nil, uses{}, begin)
	require.Equal(t, []tables.Problem{{
		Reason: "NoFreeBlock", Condition: "BlocksAssigned",
		Message: "5 of 20 nodes have no block of ports, and cannot send with the pool: " +
			"node-15, node-16, node-17, ...",
	}}, s.Problems)
	p.Blocks, p.Object.Addresses, p.Object.Conditions = s.Blocks, s.Addresses, s.Conditions
	s = row(p, nil, nodes, nil, uses{}, begin.Add(time.Hour))
	require.Empty(t, s.Problems)
	require.Equal(t, tables.Done().Status.Kind, s.Status.Kind)

	s = row(p, nil, nodes[:16], nil, uses{}, begin.Add(time.Hour))
	require.Equal(t, begin, s.Conditions[0].Since)
	require.Equal(t, "1 of 16 nodes have no block of ports, and cannot send with the pool: node-15",
		s.Problems[0].Message)
	p.Object.Conditions = s.Conditions
	s = row(p, nil, nodes[:15], nil, uses{}, begin.Add(time.Hour))
	require.Equal(t, begin.Add(time.Hour), s.Conditions[0].Since)
	require.Empty(t, s.Problems)
}
