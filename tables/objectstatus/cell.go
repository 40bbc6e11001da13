// SPDX-License-Identifier: Apache-2.0

// Package objectstatus derives the status of policies on their objects, where users look, from
// what the agents of all nodes report. It is part of the operator:
//
//	egress-policies, nodes,
//	egress-ip-pools, node-reports ──► gateway-elections ─┐
//	policies, nodes ─────────────────────────────────────┤
//	NodeReports ──► node-reports ────────────────────────┤
//	Lease ──► leadership ────────────────────────────────┴─► object-status ──► status, Events
package objectstatus

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the status of objects.
var Cell = cell.Module(
	"object-status",
	"The status of policies on their objects",

	tables.Own(tables.NewGatewayElectionTable),
	tables.OwnDesired(tables.NewObjectStatusTable),
	cell.Invoke(
		deriveElections,
		deriveStatus,
	),
)
