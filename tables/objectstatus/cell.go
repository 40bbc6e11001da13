// SPDX-License-Identifier: Apache-2.0

// Package objectstatus derives the status of policies on their objects, where users look. Each
// agent reports the status of policies on its node, and the leader sums up the reports on the
// object:
//
//	egress-policy-status, egress-gateways ─┐                        all agents
//	network-policy-status ─────────────────┴─► node-report ──► NodeReport of the node
//	                                                                     │
//	policies, nodes, egress-groups ─┐                                    │  the leader
//	node-reports ◄──────────────────│────────────────────────────────────┘
//	leadership ─────────────────────┴─► object-status ──► status, Events
//
// Whether the fields of a policy can be used follows from the object alone, so no
// node reports it.
package objectstatus

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the reports of nodes and the status of objects.
var Cell = cell.Module(
	"object-status",
	"The status of policies for others to see",

	tables.OwnDesired(tables.NewPolicyReportTable),
	tables.OwnDesired(tables.NewObjectStatusTable),
	cell.Invoke(
		deriveReport,
		deriveStatus,
	),
)
