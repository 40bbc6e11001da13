// SPDX-License-Identifier: Apache-2.0

// Package voters chooses the nodes that vote on egress addresses that move. It is part of the
// operator:
//
//	egress-voters, nodes, egress-ip-pools ─┐
//	node-reports, leadership, clock ───────┴─► egress-voters-wanted ──► ConfigMap
//	                                                                       │
//	egress-voters ◄────────────────────────────────────────────────────────┘
//
// A node has an address as long as a majority of a set of voters has voted for it, and no two nodes
// may have it. That is so while there is one set, as two majorities of one set have a node in
// common, which votes for one node at a time. A set is replaced in two steps, so that no address is
// without a node meanwhile:
//
//	{3}  ──► {3, 4}  ──► {4}  ──► {4, 5}  ──► ...
//
// While there are two sets their nodes vote in both, and a majority of either counts. Nodes learn
// of each step at different times. Three rules keep all majorities that can be in use at one time
// from being disjoint, as in Raft's changes of one server at a time (D. Ongaro, Consensus: Bridging
// Theory and Practice, 4.1):
//
//   - A set differs from the one before by one node, which is added or removed. A majority of one
//     of them and a majority of the other have a node in common, whichever they are.
//   - The next step comes only when a majority of the last set has acknowledged this one: no vote
//     that they gave in a set that it does not have is valid any more. Each majority of the set
//     before has one of these nodes. So set 3 is out of use before there is set 5.
//   - An object is replaced only if it is the one that the next step follows from, so that two
//     operators that both believe to lead make one chain of sets. That what an operator knows may
//     be old does no harm otherwise, within a chain: what was acknowledged stays true, and which
//     nodes are fit is a matter of choice. The first set of a chain has to know what was
//     acknowledged in the one before: see first.
//
// The former set also stays until all gateways that are ready have acknowledged the next one, for
// patience at most: until then a gateway whose agent is away has addresses by votes of the former.
//
// If a majority of a set is lost for good, these rules permit no other set. Then a person has to
// decide that the lost nodes do not run any more, and deletes the object: the next set is chosen
// anew.
package voters

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
)

// Cell chooses the nodes that vote.
var Cell = cell.Module(
	"egress-voters",
	"Nodes that vote on egress addresses",

	tables.OwnDesired(tables.NewWantedEgressVotersTable),
	cell.Invoke(register),
)
