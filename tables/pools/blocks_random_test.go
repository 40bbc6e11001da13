// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// operator is one that believes to lead. What it knows may be old.
type operator struct {
	pool  *tables.EgressIPPool
	nodes []string
	told  reports
	clock time.Time
}

// agent is that of a node. What it knows may be old too.
type agent struct {
	name  string
	pool  *tables.EgressIPPool
	conns map[int]bool                      // blocks that connections have ports of
	since map[tables.DrainedBlock]time.Time // when it learned that blocks were closed
}

// drainAge is for how long an agent has known that a block is closed before it says that this has
// no connections.
const drainAge = time.Minute

// learn takes the pool as it is now, and has the connections end that have no ports any more.
func (a *agent) learn(c *cluster) {
	a.pool = c.pool
	open, closed := a.pool.BlocksOf(a.name)
	has, since := map[int]bool{}, map[tables.DrainedBlock]time.Time{}
	for _, b := range slices.Concat(open, closed) {
		has[b.Index] = a.conns[b.Index]
	}
	a.conns = has
	for _, b := range closed {
		d := tables.DrainedBlock{Index: b.Index, Closed: b.Closed}
		if since[d] = c.now; !a.since[d].IsZero() {
			since[d] = a.since[d]
		}
	}
	a.since = since
}

// report returns what the agent reports when it wants so many blocks.
func (a *agent) report(now time.Time, blocks int) tables.PoolPorts {
	p := tables.PoolPorts{Pool: "p", Blocks: blocks}
	for d, since := range a.since {
		if !a.conns[d.Index] && now.Sub(since) >= drainAge {
			p.Drained = append(p.Drained, d)
		}
	}
	return p
}

// isOpen reports whether the agent takes a block for one of its own for new connections.
func (a *agent) isOpen(index int) bool {
	open, _ := a.pool.BlocksOf(a.name)
	return slices.ContainsFunc(open, func(b tables.PortBlock) bool { return b.Index == index })
}

// cluster has a pool, as the API server has it, and what its status has said.
type cluster struct {
	t       *testing.T
	rng     *rand.Rand
	now     time.Time
	nodes   []string
	agents  map[string]*agent // of the nodes, and of those that are gone
	told    reports           // as the API server has them
	pool    *tables.EgressIPPool
	version int
	last    map[int]holder // by index of a block
	drained int            // blocks that were free before they had rested
}

// holder is the node that had a block last, and when that was released, zero if it is not.
type holder struct {
	node     string
	released time.Time
}

// add adds a node, whose agent begins.
func (c *cluster) add(name string) {
	a := &agent{name: name, conns: map[int]bool{}}
	a.learn(c)
	c.agents[name] = a
}

// remove removes a node and its report. Its agent stays as it was.
func (c *cluster) remove(name string) {
	c.told = maps.Clone(c.told)
	delete(c.told, name)
}

// act has an agent do something.
func (c *cluster) act(a *agent) {
	open, closed := a.pool.BlocksOf(a.name)
	switch c.rng.IntN(8) {
	case 0, 1:
		a.learn(c)
	case 2, 3:
		if len(open) > 0 {
			index := open[c.rng.IntN(len(open))].Index
			last := c.last[index]
			if last.released.IsZero() {
				require.Equal(c.t, a.name, last.node, "block %d", index)
			}
			a.conns[index] = true
		}
	case 4, 5:
		for _, b := range slices.Concat(open, closed) {
			a.conns[b.Index] = a.conns[b.Index] && c.rng.IntN(4) > 0
		}
	case 6:
		c.tell(a, 1+c.rng.IntN(5))
	default: // it starts again
		a.since = nil
		a.learn(c)
	}
}

func (c *cluster) tell(a *agent, blocks int) {
	c.told = maps.Clone(c.told)
	c.told[a.name] = a.report(c.now, blocks)
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

// check fails if a node has a block that another one had, unless that has rested, or the other
// one has no connections with its ports, and begins none.
func (c *cluster) check() {
	has, present := map[string]int{}, map[int]bool{}
	for _, b := range c.pool.Blocks {
		require.False(c.t, present[b.Index], "two blocks %d", b.Index)
		present[b.Index] = true
		has[b.Node]++
		require.LessOrEqual(c.t, has[b.Node], tables.MaxNodeBlocks)
		last, had := c.last[b.Index]
		if had && last.node != b.Node {
			c.left(b.Index, last)
			had = false
		}
		switch {
		case b.Released.IsZero(), !had:
			last = holder{node: b.Node, released: b.Released}
		case last.released.IsZero():
			last.released = c.now
		}
		c.last[b.Index] = last
	}
	for index, last := range c.last {
		if !present[index] {
			c.left(index, last)
			delete(c.last, index)
		}
	}
}

// left fails if a block is free that the node which had it last may use.
func (c *cluster) left(index int, last holder) {
	if !last.released.IsZero() {
		require.GreaterOrEqual(c.t, c.now.Sub(last.released), tables.BlockRest)
		return
	}
	c.drained++
	a := c.agents[last.node]
	require.False(c.t, a.conns[index], "block %d of %s has connections", index, last.node)
	require.False(c.t, a.isOpen(index), "block %d of %s is used", index, last.node)
}

func (c *cluster) step(operators []*operator) {
	o := operators[c.rng.IntN(len(operators))]
	switch c.rng.IntN(20) {
	case 0:
		c.now = c.now.Add(time.Duration(c.rng.IntN(60)) * time.Second)
	case 1:
		c.now = c.now.Add(time.Duration(c.rng.IntN(90)) * time.Minute)
	case 2:
		name := fmt.Sprintf("node-%02d", c.rng.IntN(30))
		if at, found := slices.BinarySearch(c.nodes, name); found {
			c.nodes = slices.Delete(slices.Clone(c.nodes), at, at+1)
			c.remove(name)
		} else {
			c.nodes = slices.Insert(slices.Clone(c.nodes), at, name)
			c.add(name)
		}
	case 3, 4:
		o.nodes = c.nodes
	case 5:
		o.pool = c.pool
	case 6, 7:
		o.told = c.told
	case 8, 9, 10, 11, 12, 13, 14, 15:
		if len(c.nodes) > 0 {
			c.act(c.agents[c.nodes[c.rng.IntN(len(c.nodes))]])
		}
	default:
		o.clock = c.now.Add(-time.Duration(c.rng.Int64N(int64(tables.ClockInterval))))
		s := row(o.pool, nil, o.nodes, o.told, uses{}, o.clock)
		if s.Status != tables.Done().Status && c.write(s) && c.rng.IntN(2) == 0 {
			o.pool = c.pool
		}
	}
}

// Whatever happens to nodes, and whatever they report, though two operators believe to lead, no
// block is given to a node while connections of another one may have its ports. At last each node
// has a block.
func TestBlocksRandom(t *testing.T) {
	drained := 0
	for seed := range uint64(200) {
		c := &cluster{
			t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: begin, last: map[int]holder{},
			agents: map[string]*agent{}, told: reports{},
			pool: &tables.EgressIPPool{
				Name: "p", PortsPerBlock: 4096, // 15 blocks
				Object: &tables.PoolObject{ResourceVersion: "0"},
			},
		}
		operators := []*operator{{pool: c.pool}, {pool: c.pool}}
		for range 2000 {
			c.step(operators)
		}
		drained += c.drained
		for range 4 {
			for _, n := range c.nodes {
				a := c.agents[n]
				a.learn(c)
				clear(a.conns)
				c.tell(a, 1)
			}
			c.now = c.now.Add(2 * rest)
			c.write(row(c.pool, nil, c.nodes, c.told, uses{}, c.now))
		}
		s := row(c.pool, nil, c.nodes, c.told, uses{}, c.now)
		require.Equal(t, tables.Done().Status.Kind, s.Status.Kind)
		for _, b := range s.Blocks {
			require.Contains(t, c.nodes, b.Node)
		}
		require.Len(t, s.Blocks, min(len(c.nodes), tables.PortBlocks(4096)))
		full := len(c.nodes) > len(s.Blocks)
		require.Equal(t, full, s.Conditions[0].Status == tables.ConditionFalse, s.Conditions)
	}
	require.Greater(t, drained, 100, "of all seeds")
}
