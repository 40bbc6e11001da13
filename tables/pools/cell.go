// SPDX-License-Identifier: Apache-2.0

// Package pools derives what EgressIPPools give, in their status: blocks of ports to each node,
// as many as it reports to want, and an address to each policy that names the pool. It is part of
// the operator:
//
//	egress-ip-pools, nodes, egress-policies ─┐
//	node-reports, leadership, clock ─────────┴─► egress-ip-pool-status ──► status
//	                                                                         │
//	egress-ip-pools ◄────────────────────────────────────────────────────────┘
//
// The status that a pool has is where it is decided from: what it has given stays.
package pools

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the status of pools.
var Cell = cell.Module(
	"egress-ip-pools",
	"Blocks of ports and addresses of pools",

	tables.OwnDesired(tables.NewEgressIPPoolStatusTable),
	cell.Invoke(register),
)
