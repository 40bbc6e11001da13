// SPDX-License-Identifier: Apache-2.0

package portdemand

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

var addr = netip.MustParseAddr("203.0.113.9")

// world is a node with a pool of blocks of 64 ports.
type world struct {
	*testing.T
	*looker
	pools  statedb.RWTable[*tables.EgressIPPool]
	blocks statedb.RWTable[*tables.EgressBlock]
	time   time.Time

	// What the kernel says.
	ports    map[netip.Addr]int
	ended    int // ports that are counted, and not used any more
	counted  int // how often that was corrected
	sources  []netip.AddrPort
	walks    int
	unloaded bool
	fails    error
}

func (w *world) used() (map[netip.Addr]int, bool, error) {
	most := map[netip.Addr]int{}
	for a, n := range w.ports {
		most[a] = n + w.ended
	}
	return most, !w.unloaded, w.fails
}

func (w *world) recount(context.Context) error {
	w.ended = 0
	w.counted++
	return nil
}

func (w *world) translations(f func(netip.AddrPort)) error {
	w.walks++
	for _, s := range w.sources {
		f(s)
	}
	return nil
}

func newWorld(t *testing.T) *world {
	db := statedb.New()
	w := &world{
		T: t, time: time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC), ports: map[netip.Addr]int{},
	}
	demand, err := tables.NewEgressPortDemandTable(db)
	require.NoError(t, err)
	w.pools, err = tables.NewEgressIPPoolTable(db)
	require.NoError(t, err)
	w.blocks, err = tables.NewEgressBlockTable(db)
	require.NoError(t, err)
	w.looker = newLooker(params{
		DB: db, Demand: demand, Pools: w.pools, Blocks: w.blocks,
		LocalNode: tables.LocalNode{Name: "node-1"},
	}, w)
	w.now = func() time.Time { return w.time }
	return w
}

// has gives the node blocks of the pool, of which some were closed at a time, and tells the
// programs.
func (w *world) has(open int, closed ...tables.PortBlock) {
	w.given(open, closed...)
	w.told(closed...)
}

func (w *world) given(open int, closed ...tables.PortBlock) {
	p := &tables.EgressIPPool{
		Name: "p", UID: "u", PortsPerBlock: 64, Prefixes: []netip.Prefix{netip.PrefixFrom(addr, 24)},
		Blocks: []tables.PortBlock{{Index: 100, Node: "node-2"}},
	}
	for i := range open {
		p.Blocks = append(p.Blocks, tables.PortBlock{Index: i, Node: "node-1"})
	}
	p.Blocks = append(p.Blocks, closed...)
	tablestest.Insert(w.T, w.DB, w.pools, p)
}

func (w *world) told(closed ...tables.PortBlock) {
	row := &tables.EgressBlock{
		Addr: addr, Pool: "p", Size: 64, Closed: len(closed), Reconciled: tables.Done(),
	}
	for i, b := range closed {
		first := firstOf(b.Index)
		row.Ports[3-i] = bpf.PortRange{First: first, Last: first + 63}
	}
	tablestest.Insert(w.T, w.DB, w.blocks, row)
}

func firstOf(index int) uint16 { return uint16(tables.FirstPort + 64*index) }

// after returns the row some time later, in which the node looks as often as it does.
func (w *world) after(d time.Duration) *tables.EgressPortDemand {
	for end := w.time.Add(d); w.time.Before(end); {
		w.time = w.time.Add(lookInterval)
		require.NoError(w, w.look(w.Context()))
	}
	row, _, _ := w.Demand.Get(w.DB.ReadTxn(), tables.EgressPortDemandByPool("p"))
	return row
}

// TestMore: more than half of what a node has is used: it wants more at once, if that is so.
func TestMore(t *testing.T) {
	w := newWorld(t)
	require.Nil(t, w.after(time.Minute))
	w.has(1)
	w.unloaded = true
	require.Nil(t, w.after(time.Minute))
	w.unloaded = false
	w.ports[addr] = 32
	w.ports[netip.MustParseAddr("192.0.2.1")] = 500 // of no pool
	require.Equal(t, &tables.EgressPortDemand{
		PoolPorts: tables.PoolPorts{Pool: "p", Blocks: 1}, Has: 1, Ports: 64, Used: 32, Peak: 32,
	}, w.after(lookInterval))
	w.ended = 20
	require.Equal(t, 1, w.after(lookInterval).Blocks)
	require.Equal(t, 1, w.counted, "what has ended is no reason")

	w.ports[addr] = 33
	require.Equal(t, 2, w.after(lookInterval).Blocks)
	counted := w.counted
	require.Equal(t, 2, w.after(time.Minute).Blocks)
	require.Equal(t, counted, w.counted, "what is reported is not made sure of again")
	w.has(2)
	require.Equal(t, 2, w.after(time.Minute).Blocks)
	w.ports[addr] = 180
	require.Equal(t, 4, w.after(lookInterval).Blocks)
	w.has(4)
	w.ports[addr] = 256
	require.Equal(t, 4, w.after(time.Minute).Blocks)

	w.fails = errors.New("no map")
	w.time = w.time.Add(lookInterval)
	require.ErrorIs(t, w.look(t.Context()), w.fails)
	w.fails = nil
	tablestest.Delete(t, w.DB, w.pools, &tables.EgressIPPool{Name: "p"})
	require.Nil(t, w.after(lookInterval))
}

// TestLess: a node wants less when an hour has needed less, and not what it would ask for again.
func TestLess(t *testing.T) {
	w := newWorld(t)
	w.has(3)
	w.ports[addr] = 31 // less than a quarter of 128, and not of 64
	require.Equal(t, 3, w.after(time.Hour-lookInterval).Blocks, "the hour is not known yet")
	require.Equal(t, 2, w.after(2*lookInterval).Blocks)
	w.has(2)
	w.ports[addr] = 100
	require.Equal(t, 4, w.after(lookInterval).Blocks)
	w.has(4)
	w.ports[addr] = 0
	require.Equal(t, 4, w.after(time.Hour-2*lookInterval).Blocks)
	require.Equal(t, 1, w.after(2*lookInterval).Blocks)
	w.has(1)
	require.Equal(t, 1, w.after(time.Hour).Blocks)
}

// Whatever the use, a node that got what it wanted wants nothing else for the same use.
func TestWantedIsSteady(t *testing.T) {
	for has := range tables.MaxNodeBlocks + 1 {
		for used := range 5 * 64 {
			for most := used; most < 5*64; most++ {
				n := wanted(has, 64, used, most)
				require.True(t, 1 <= n && n <= tables.MaxNodeBlocks)
				require.Equal(t, n, wanted(n, 64, used, most), fmt.Sprint(has, used, most))
			}
		}
	}
}

// TestDrained: a closed block is drained when the programs have known that for a while, and no
// connection has a port of it.
func TestDrained(t *testing.T) {
	w := newWorld(t)
	first := tables.PortBlock{Index: 7, Node: "node-1", Closed: w.time}
	second := tables.PortBlock{Index: 8, Node: "node-1", Closed: w.time}
	drained := func(after time.Duration) (of []int) {
		for _, d := range w.after(after).Drained {
			require.Equal(t, first.Closed, d.Closed)
			of = append(of, d.Index)
		}
		return of
	}
	w.has(1)
	w.given(1, first, second)
	require.Empty(t, drained(time.Hour), "the programs do not know")
	require.Zero(t, w.walks)
	w.told(first, second)
	w.sources = []netip.AddrPort{
		netip.AddrPortFrom(addr, firstOf(8)-1),
		netip.AddrPortFrom(addr, firstOf(9)), netip.AddrPortFrom(addr, 80),
		netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), firstOf(8)), // of no pool
	}
	require.Empty(t, drained(drainAge))
	require.Equal(t, []int{8}, drained(2*lookInterval))
	walks := w.walks
	require.Equal(t, []int{8}, drained(time.Hour))
	require.InDelta(t, 60, w.walks-walks, 1, "not at each look")
	w.sources = nil
	require.Equal(t, []int{7, 8}, drained(walkInterval))
	walks = w.walks
	require.Equal(t, []int{7, 8}, drained(time.Hour))
	require.Equal(t, walks, w.walks)

	// It is used again, and closed again.
	w.has(2)
	require.Empty(t, drained(lookInterval))
	first.Closed = w.time
	w.has(1, first)
	require.Empty(t, drained(drainAge))
	require.Equal(t, []int{7}, drained(walkInterval))
}
