// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type bgpParams struct {
	cell.In

	Sessions  statedb.RWTable[*tables.EgressBGPSession]
	Peers     statedb.Table[*tables.EgressBGPPeer]
	Nodes     statedb.Table[*tables.Node]
	LocalNode tables.LocalNode
}

// allSessions is the one key of the rule: of routers with the same address one gets a session.
const allSessions = 0

func deriveSessions(p derive.Params, b bgpParams) error { return derive.Register(p, b.declare()) }

// declare is the rule that finds the routers that this node has a session with.
func (b *bgpParams) declare() derive.Rule[int] {
	return derive.Rule[int]{
		Outputs: []statedb.TableMeta{b.Sessions},
		Seed:    []int{allSessions},
		Inputs: []derive.Input[int]{
			derive.OnChange(b.Peers,
				func(_ statedb.ReadTxn, mark func(int)) { mark(allSessions) }),
			derive.FromIf(b.Nodes,
				func(old, new *tables.Node) bool { return !maps.Equal(old.Labels, new.Labels) },
				func(_ statedb.ReadTxn, n *tables.Node, mark func(int)) {
					if n.Name == b.LocalNode.Name {
						mark(allSessions)
					}
				}),
		},
		Compute: func(in statedb.ReadTxn, out statedb.WriteTxn, _ []int, _ func(int)) error {
			equal := (*tables.EgressBGPSession).Equal
			return derive.Replace(out, b.Sessions, equal, b.Sessions.All(out), b.rows(in)...)
		},
	}
}

// rows returns a session for each router that selects this node. One whose object has a mistake,
// of which it is not known whether it selects the node, gets none.
func (b *bgpParams) rows(in statedb.ReadTxn) (rows []*tables.EgressBGPSession) {
	node, _, found := b.Nodes.Get(in, tables.NodeByName(b.LocalNode.Name))
	if !found {
		return nil
	}
	peers := statedb.Collect(b.Peers.All(in))
	slices.SortFunc(peers, tables.InOrder[*tables.EgressBGPPeer])
	taken := map[netip.Addr]string{}
	for _, p := range peers {
		row := &tables.EgressBGPSession{
			Peer: p.Name, BGPSettings: p.BGPSettings, Reconciled: tables.Pending(),
		}
		nodes, err := labels.Parse(p.Nodes)
		switch other, shared := taken[p.Addr]; {
		case len(p.Errors) > 0:
			row.Refused = "the object has mistakes: " + p.Errors[0].Error()
		case err != nil:
			row.Refused = "spec.nodeSelector: " + err.Error()
		case !nodes.Matches(labels.Set(node.Labels)):
			continue
		case shared:
			row.Refused = "spec.peerAddress: is that of " + other + " too, which is older"
		default:
			taken[p.Addr] = p.Name
		}
		rows = append(rows, row)
	}
	return rows
}
