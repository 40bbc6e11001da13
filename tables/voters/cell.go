// SPDX-License-Identifier: Apache-2.0

// Package voters chooses the nodes that vote on egress addresses that move. It is part of the
// operator:
//
//	egress-voters, nodes, egress-ip-pools ─┐
//	node-reports, leadership, clock ───────┴─► egress-voters-wanted ──► ConfigMap
//	                                                                       │
//	egress-voters ◄────────────────────────────────────────────────────────┘
//
// A node has an address as long as a majority of the voters has voted for it, and no two nodes may
// have it. That is so while there is one set of voters, as two majorities of one set have a node in
// common, which votes for one node at a time. But nodes learn of a new set at different times, and
// one may have votes of an old set while another has votes of a new one. Two rules keep all
// majorities that can be in use at one time from being disjoint, as in Raft's changes of one server
// at a time (D. Ongaro, Consensus: Bridging Theory and Practice, 4.1):
//
//   - A set differs from the one before by one node, which is added or removed. A majority of one
//     of them and a majority of the other have a node in common, whichever they are.
//   - The next set comes only when a majority of the nodes of a set have acknowledged it: no vote
//     that they gave in a former generation counts any more. Each majority of the former set has
//     one of these nodes, so none of its majorities is in use, and the sets before are out of use
//     for the same reason.
//
// A third follows from them: an object is replaced only if it is the one that the next set follows
// from, so that two operators that both believe to lead make one chain of sets. That what an
// operator knows may be old does no harm otherwise: what was acknowledged stays true, and which
// nodes are fit is a matter of choice.
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
