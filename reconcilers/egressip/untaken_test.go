// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// TestUntaken: a node that has not taken an address after a while is told, unless a node has it or
// the vote does not count yet, and forgotten when it has taken the address.
func TestUntaken(t *testing.T) {
	db := statedb.New()
	owners := tablestest.Open(t, db, tables.NewEgressIPOwnerTable)
	rows := tablestest.Open(t, db, tables.NewEgressIPUntakenTable)
	ips := tablestest.Open(t, db, tables.NewEgressIPTable)
	u := newUntaken(params{
		DB: db, Log: hivetest.Logger(t), IPs: ips, Owners: owners, Untaken: rows,
	})
	now := uint64(0)
	nodes := func(votes ...*tables.EgressIPVote) (nodes []string) {
		require.NoError(t, u.follow(votes, now))
		now += takeWithin / 2
		for row := range rows.All(db.ReadTxn()) {
			nodes = append(nodes, row.Node)
		}
		return nodes
	}
	first := &tables.EgressIPVote{Addr: v4, Node: "node-1"}
	waiting := &tables.EgressIPVote{Addr: v4, Node: "node-1", Wait: "a vote is valid"}
	second := &tables.EgressIPVote{Addr: v4, Node: "node-2"}
	for _, vote := range []*tables.EgressIPVote{first, first, waiting, first, second, second, first} {
		require.Empty(t, nodes(vote))
	}
	require.Empty(t, nodes(first))
	owner := &tables.EgressIPOwner{Addr: v4, NodeAddr: netip.MustParseAddr("192.0.2.3")}
	owners.Put(owner)
	for range 4 {
		require.Empty(t, nodes(first), "a node has it")
	}
	owners.Remove(owner)
	require.Empty(t, nodes(first))
	require.Equal(t, []string{"node-1"}, nodes(first))
	require.Equal(t, []string{"node-1"}, nodes(second))
	row := &tables.EgressIPUntaken{Addr: v4, Node: "node-1", Since: time.Now().Add(-avoidFor)}
	rows.Put(row)
	require.Equal(t, []string{"node-1"}, nodes(second))
	past := *row
	past.Past = true
	require.Equal(t, []*tables.EgressIPUntaken{&past}, statedb.Collect(rows.All(db.ReadTxn())))
	for _, node := range []string{"node-2", "node-1"} {
		require.Equal(t, []string{"node-1"}, nodes(waiting))
		ips.Put(&tables.EgressIP{Addr: v4, Owner: node})
	}
	require.Empty(t, nodes(waiting), "it has taken it after all")
	rows.Put(row)
	ips.Remove(&tables.EgressIP{Addr: v4})
	require.Empty(t, nodes(), "it is not used any more")
	require.Empty(t, u.since)
}
