// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// A node has a session with each router that selects it, and one of routers with one address has
// it. What is known of the session stays while nothing else is wanted.
func TestSessions(t *testing.T) {
	db := statedb.New()
	peers := tablestest.Open(t, db, tables.NewEgressBGPPeerTable)
	nodes := tablestest.Open(t, db, tables.NewNodeTable)
	sessions := tablestest.Open(t, db, tables.NewEgressBGPSessionTable)
	b := bgpParams{
		Sessions: sessions, Peers: peers, Nodes: nodes, LocalNode: tables.LocalNode{Name: "node-1"},
	}
	step := tablestest.NewRule(t, db, b.declare())
	peer := func(
		name, selector, addr string, age int, errs ...tables.FieldError,
	) *tables.EgressBGPPeer {
		return &tables.EgressBGPPeer{
			Name: name, Nodes: selector, Created: time.Unix(int64(1000-age), 0), Errors: errs,
			BGPSettings: tables.BGPSettings{
				LocalASN: 1, PeerASN: 2, Addr: netip.MustParseAddr(addr), Port: 179,
			},
		}
	}
	has := func(want ...string) {
		t.Helper()
		step.Step()
		var got []string
		for row := range sessions.All(db.ReadTxn()) {
			got = append(got, fmt.Sprint(row.Peer, " ", row.Addr, " ", row.Refused))
		}
		require.Equal(t, want, got)
	}
	peers.Put(
		peer("all", "", "192.0.2.1", 5), peer("rack", "rack=1", "192.0.2.2", 5),
		peer("elsewhere", "rack=2", "192.0.2.3", 5),
		peer("young", "", "192.0.2.1", 1), peer("old", "", "192.0.2.2", 9),
		peer("wrong", "rack=2", "192.0.2.4", 1, tables.FieldError{Field: "spec.x", Reason: "is x"}),
	)
	has()
	nodes.Put(&tables.Node{Name: "node-1", Labels: labels.Set{"rack": "1"}},
		&tables.Node{Name: "node-2", Labels: labels.Set{"rack": "2"}})
	has("all 192.0.2.1 ", "old 192.0.2.2 ",
		"rack 192.0.2.2 spec.peerAddress: is that of old too, which is older",
		"wrong 192.0.2.4 the object has mistakes: spec.x: is x",
		"young 192.0.2.1 spec.peerAddress: is that of all too, which is older")

	row, _, _ := sessions.Get(db.ReadTxn(), tables.EgressBGPSessionByPeer("all"))
	row = tables.Clone(row)
	row.State, row.Reconciled = tables.BGPEstablished, tables.Done()
	sessions.Put(row)
	nodes.Put(&tables.Node{Name: "node-1", Labels: labels.Set{"rack": "2"}})
	peers.Remove(peer("old", "", "192.0.2.2", 9), peer("wrong", "", "192.0.2.4", 1),
		peer("young", "", "192.0.2.1", 1))
	has("all 192.0.2.1 ", "elsewhere 192.0.2.3 ")
	kept, _, _ := sessions.Get(db.ReadTxn(), tables.EgressBGPSessionByPeer("all"))
	require.Equal(t, row, kept)

	peers.Put(peer("all", "", "192.0.2.9", 5))
	has("all 192.0.2.9 ", "elsewhere 192.0.2.3 ")
	changed, _, _ := sessions.Get(db.ReadTxn(), tables.EgressBGPSessionByPeer("all"))
	require.Empty(t, changed.State)
	require.Equal(t, reconciler.StatusKindPending, changed.Status.Kind)
}
