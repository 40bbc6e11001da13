// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

var begin = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

func TestAssignBlocks(t *testing.T) {
	has, without := assignBlocks(nil, 3, []string{"a", "b"}, begin)
	require.Equal(t, []tables.PortBlock{{Index: 0, Node: "a"}, {Index: 1, Node: "b"}}, has)
	require.Empty(t, without)

	// A block of a node that is gone rests, and is not the lowest free one meanwhile.
	has, _ = assignBlocks(has, 3, []string{"b", "c"}, begin)
	require.Equal(t, []tables.PortBlock{
		{Index: 0, Node: "a", Released: begin}, {Index: 1, Node: "b"}, {Index: 2, Node: "c"},
	}, has)
	before := begin.Add(rest - time.Second)
	has, without = assignBlocks(has, 3, []string{"b", "c", "d"}, before)
	require.Len(t, has, 3)
	require.Equal(t, begin, has[0].Released)
	require.Equal(t, []string{"d"}, without)

	// It is the node's again if that returns, or else another one's.
	again, without := assignBlocks(has, 3, []string{"a", "b", "c", "d"}, begin.Add(rest))
	require.Equal(t, tables.PortBlock{Index: 0, Node: "a"}, again[0])
	require.Equal(t, []string{"d"}, without)
	has, without = assignBlocks(has, 3, []string{"b", "c", "d"}, begin.Add(rest))
	require.Equal(t, tables.PortBlock{Index: 0, Node: "d"}, has[0])
	require.Empty(t, without)

	// One that was released by a clock of years ahead rests from now on, and not for years.
	has = []tables.PortBlock{{Index: 0, Node: "a", Released: begin.AddDate(9, 0, 0)}}
	has, _ = assignBlocks(has, 1, []string{"b"}, begin)
	require.Equal(t, []tables.PortBlock{{Index: 0, Node: "a", Released: begin}}, has)
	has, _ = assignBlocks(has, 1, []string{"b"}, begin.Add(rest))
	require.Equal(t, []tables.PortBlock{{Index: 0, Node: "b"}}, has)
}

// operator is one that believes to lead. What it knows may be old.
type operator struct {
	pool  *tables.EgressIPPool
	nodes []string
	clock time.Time
}

// cluster has a pool, as the API server has it, and what its status has said.
type cluster struct {
	t       *testing.T
	rng     *rand.Rand
	now     time.Time
	nodes   []string
	pool    *tables.EgressIPPool
	version int
	last    map[int]holder // by index of a block
}

// holder is the node that had a block last, and when that was released, zero if it is not.
type holder struct {
	node     string
	released time.Time
}

// write replaces the status, if it is that of the object's present version.
func (c *cluster) write(s *tables.EgressIPPoolStatus) bool {
	if s.ResourceVersion != c.pool.Object.ResourceVersion {
		return false
	}
	c.version++
	pool := *c.pool
	pool.Blocks, pool.Allocations = s.Blocks, s.Allocations
	pool.Object = &tables.PoolObject{
		ResourceVersion: fmt.Sprint(c.version), Addresses: s.Addresses, Conditions: s.Conditions,
	}
	c.pool = &pool
	c.check()
	return true
}

// check fails if a node has a block that another one had, unless that has rested.
func (c *cluster) check() {
	nodes, present := map[string]bool{}, map[int]bool{}
	for _, b := range c.pool.Blocks {
		require.False(c.t, present[b.Index], "two blocks %d", b.Index)
		require.False(c.t, nodes[b.Node], "two blocks of %s", b.Node)
		nodes[b.Node], present[b.Index] = true, true
		last, had := c.last[b.Index]
		if had && last.node != b.Node {
			require.False(c.t, last.released.IsZero(), "block %d of %s is given to %s",
				b.Index, last.node, b.Node)
			require.GreaterOrEqual(c.t, c.now.Sub(last.released), tables.BlockRest)
		}
		switch {
		case b.Released.IsZero():
			last = holder{node: b.Node}
		case last.released.IsZero():
			last.released = c.now
		}
		c.last[b.Index] = last
	}
}

func (c *cluster) step(operators []*operator) {
	o := operators[c.rng.IntN(len(operators))]
	switch c.rng.IntN(8) {
	case 0:
		c.now = c.now.Add(time.Duration(c.rng.IntN(60)) * time.Second)
	case 1:
		c.now = c.now.Add(time.Duration(c.rng.IntN(90)) * time.Minute)
	case 2:
		name := fmt.Sprintf("node-%02d", c.rng.IntN(30))
		if at, found := slices.BinarySearch(c.nodes, name); found {
			c.nodes = slices.Delete(slices.Clone(c.nodes), at, at+1)
		} else {
			c.nodes = slices.Insert(slices.Clone(c.nodes), at, name)
		}
	case 3, 4:
		o.nodes = c.nodes
	case 5:
		o.pool = c.pool
	default:
		o.clock = c.now.Add(-time.Duration(c.rng.Int64N(int64(tables.ClockInterval))))
		s := row(o.pool, nil, o.nodes, uses{}, o.clock)
		if s.Status != tables.Done().Status && c.write(s) && c.rng.IntN(2) == 0 {
			o.pool = c.pool
		}
	}
}

// Whatever happens to nodes, and though two operators believe to lead, no block is given to a node
// while connections of another one may have its ports. At last each node has a block.
func TestBlocksRandom(t *testing.T) {
	for seed := range uint64(200) {
		c := &cluster{
			t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: begin, last: map[int]holder{},
			pool: &tables.EgressIPPool{
				Name: "p", PortsPerBlock: 4096, // 15 blocks
				Object: &tables.PoolObject{ResourceVersion: "0"},
			},
		}
		operators := []*operator{{pool: c.pool}, {pool: c.pool}}
		for range 500 {
			c.step(operators)
		}
		for range 2 {
			c.now = c.now.Add(2 * rest)
			c.write(row(c.pool, nil, c.nodes, uses{}, c.now))
		}
		s := row(c.pool, nil, c.nodes, uses{}, c.now)
		require.Equal(t, tables.Done().Status.Kind, s.Status.Kind)
		for _, b := range s.Blocks {
			require.Contains(t, c.nodes, b.Node)
		}
		require.Len(t, s.Blocks, min(len(c.nodes), tables.PortBlocks(4096)))
		full := len(c.nodes) > len(s.Blocks)
		require.Equal(t, full, s.Conditions[0].Status == tables.ConditionFalse, s.Conditions)
	}
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
	s := row(p, nil, nodes, uses{}, begin)
	require.Equal(t, []tables.Problem{{
		Reason: "NoFreeBlock", Condition: "BlocksAssigned",
		Message: "5 of 20 nodes have no block of ports, and cannot send with the pool: " +
			"node-15, node-16, node-17, ...",
	}}, s.Problems)
	p.Blocks, p.Object.Addresses, p.Object.Conditions = s.Blocks, s.Addresses, s.Conditions
	s = row(p, nil, nodes, uses{}, begin.Add(time.Hour))
	require.Empty(t, s.Problems)
	require.Equal(t, tables.Done().Status.Kind, s.Status.Kind)

	s = row(p, nil, nodes[:16], uses{}, begin.Add(time.Hour))
	require.Equal(t, begin, s.Conditions[0].Since)
	require.Equal(t, "1 of 16 nodes have no block of ports, and cannot send with the pool: node-15",
		s.Problems[0].Message)
	p.Object.Conditions = s.Conditions
	s = row(p, nil, nodes[:15], uses{}, begin.Add(time.Hour))
	require.Equal(t, begin.Add(time.Hour), s.Conditions[0].Since)
	require.Empty(t, s.Problems)
}
