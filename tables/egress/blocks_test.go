// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// blockWorld has the tables of the rules of blocks, and the rules.
type blockWorld struct {
	blockParams
	db     *statedb.DB
	blocks *tablestest.Rule[netip.Addr]
	owners *tablestest.Rule[bpf.OwnerKey]
	*testing.T
}

func newBlockWorld(t *testing.T) *blockWorld {
	db := statedb.New()
	w := &blockWorld{T: t, db: db, blockParams: blockParams{
		Blocks:    tablestest.Open(t, db, tables.NewEgressBlockTable),
		Owners:    tablestest.Open(t, db, tables.NewPortOwnerTable),
		IPs:       tablestest.Open(t, db, tables.NewEgressIPTable),
		Pools:     tablestest.Open(t, db, tables.NewEgressIPPoolTable),
		Nodes:     tablestest.Open(t, db, tables.NewNodeTable),
		LocalNode: tables.LocalNode{Name: nodeNumber(1)},
	}}
	w.blocks = tablestest.NewRule(t, db, w.blockParams.blocks())
	w.owners = tablestest.NewRule(t, db, w.blockParams.owners())
	return w
}

func nodeNumber(i int) string { return fmt.Sprintf("node-%d", i) }

func nodeAddr(i, version int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, byte(version), byte(i)})
}

func (w *blockWorld) node(i, version int) {
	tablestest.Insert(w.T, w.db, w.Nodes, &tables.Node{
		Name: nodeNumber(i), InternalIPs: []netip.Addr{nodeAddr(i, version)},
	})
}

func (w *blockWorld) work() {
	w.blocks.Work()
	w.owners.Work()
}

func (w *blockWorld) block(addr netip.Addr) *tables.EgressBlock {
	w.work()
	row, _, _ := w.Blocks.Get(w.db.ReadTxn(), tables.EgressBlockByAddr(addr))
	return row
}

// owned returns the nodes of the blocks of an address.
func (w *blockWorld) owned(addr netip.Addr) map[int]netip.Addr {
	w.work()
	nodes := map[int]netip.Addr{}
	for row := range w.Owners.Prefix(w.db.ReadTxn(), tables.PortOwnersOfAddr(addr)) {
		nodes[int(row.Block)] = row.Addr
	}
	return nodes
}

// A node uses the ports of its own blocks, adjacent ones as one range, by the node that shall have
// the address.
func TestBlocks(t *testing.T) {
	w := newBlockWorld(t)
	addr := netip.MustParseAddr("203.0.113.9")
	require.Nil(t, w.block(addr))
	tablestest.Insert(t, w.db, w.IPs, &tables.EgressIP{
		Addr: addr, Pool: "a", Node: nodeNumber(2), NodeAddr: nodeAddr(2, 0),
	})
	require.Equal(t, "pool a has no block of ports for this node", w.block(addr).Reason)

	pool := tables.EgressIPPool{Name: "a", PortsPerBlock: 64, Blocks: []tables.PortBlock{
		{Index: 0, Node: nodeNumber(2)}, {Index: 1, Node: nodeNumber(1)}, {Index: 2, Node: nodeNumber(1)},
		{Index: 5, Node: nodeNumber(1)}, {Index: 6, Node: nodeNumber(1), Released: time.Unix(1, 0)},
		{Index: 1008, Node: nodeNumber(1)},
	}}
	tablestest.Insert(t, w.db, w.Pools, &pool)
	w.node(1, 0)
	w.node(2, 0)
	row := w.block(addr)
	require.Empty(t, row.Reason)
	require.Equal(t, bpf.BlockValue{
		Gateway: bpf.AddressFrom(nodeAddr(2, 0)), Size: 64,
		Ports: [bpf.SharedPortRanges]bpf.PortRange{{First: 1088, Last: 1215}, {First: 1344, Last: 1407}},
	}, row.MapValue())

	// A closed block is at the end, and a change of that alone is one.
	closed := pool
	closed.Blocks = slices.Clone(pool.Blocks)
	closed.Blocks[2].Closed = time.Unix(1, 0)
	tablestest.Insert(t, w.db, w.Pools, &closed)
	row = w.block(addr)
	require.Equal(t, bpf.BlockValue{
		Gateway: bpf.AddressFrom(nodeAddr(2, 0)), Size: 64, Closed: 1,
		Ports: [bpf.SharedPortRanges]bpf.PortRange{
			{First: 1088, Last: 1151}, {First: 1344, Last: 1407}, {}, {First: 1152, Last: 1215},
		},
	}, row.MapValue())
	require.Equal(t, "1088-1151, 1344-1407, 1152-1215 closed", row.TableRow()[4])
	require.True(t, row.IsClosed(1152) && row.IsClosed(1215))
	require.False(t, row.IsClosed(1151) || row.IsClosed(1216) || row.IsClosed(0))

	tablestest.Insert(t, w.db, w.IPs, &tables.EgressIP{Addr: addr, Pool: "a", Reason: "no node"})
	require.Equal(t, "no node", w.block(addr).Reason)
	require.Equal(t, bpf.Address{}, w.block(addr).MapValue().Gateway)
}

// However objects change, an address has the owners that its pool says, by the addresses of their
// nodes, and no others.
func TestPortOwnersRandom(t *testing.T) {
	for seed := range uint64(20) {
		w := newBlockWorld(t)
		r := rand.New(rand.NewPCG(seed, 1))
		addrs := []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")}
		poolNames := []string{"a", "b"}
		for range 60 {
			addr, pool, i := addrs[r.IntN(2)], poolNames[r.IntN(2)], 1+r.IntN(4)
			switch r.IntN(6) {
			case 0:
				tablestest.Insert(t, w.db, w.IPs, &tables.EgressIP{Addr: addr, Pool: pool})
			case 1:
				tablestest.Delete(t, w.db, w.IPs, &tables.EgressIP{Addr: addr})
			case 2, 3:
				p := &tables.EgressIPPool{Name: pool, PortsPerBlock: 64}
				for index := range 6 {
					if node := r.IntN(6); node > 0 {
						p.Blocks = append(p.Blocks, tables.PortBlock{Index: index, Node: nodeNumber(node)})
					}
				}
				tablestest.Insert(t, w.db, w.Pools, p)
			case 4:
				tablestest.Delete(t, w.db, w.Pools, &tables.EgressIPPool{Name: pool})
			case 5:
				if r.IntN(3) == 0 {
					tablestest.Delete(t, w.db, w.Nodes, &tables.Node{Name: nodeNumber(i)})
				} else {
					w.node(i, r.IntN(3))
				}
			}
			if r.IntN(3) == 0 {
				continue // several changes in one snapshot
			}
			for _, addr := range addrs {
				require.Equal(t, w.wanted(addr), w.owned(addr), "seed %d", seed)
			}
		}
	}
}

// wanted is what owned shall be.
func (w *blockWorld) wanted(addr netip.Addr) map[int]netip.Addr {
	nodes := map[int]netip.Addr{}
	txn := w.db.ReadTxn()
	ip, _, found := w.IPs.Get(txn, tables.EgressIPByAddr(addr))
	if !found {
		return nodes
	}
	for pool := range w.Pools.All(txn) {
		for node := range w.Nodes.All(txn) {
			for i := range 6 {
				if pool.Name == ip.Pool && slices.Contains(pool.Blocks,
					tables.PortBlock{Index: i, Node: node.Name}) {
					nodes[i] = node.UnderlayIP()
				}
			}
		}
	}
	return nodes
}
