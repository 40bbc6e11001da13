// SPDX-License-Identifier: Apache-2.0

// Package nodereport derives what this node tells of policies, which the operator sums up on
// their objects:
//
//	egress-policy-status, egress-gateways ─┐
//	network-policy-status ─────────────────┴─► node-report ──► NodeReport of the node
//
// Whether the fields of a policy can be used follows from the object alone, so no
// node reports it.
package nodereport

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the report of this node.
var Cell = cell.Module(
	"policy-reports",
	"The status of policies on this node",

	tables.OwnDesired(tables.NewPolicyReportTable),
	cell.Invoke(deriveReport),
)
