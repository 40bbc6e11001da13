// SPDX-License-Identifier: Apache-2.0

// Package selection answers which policies' selectors choose which endpoints,
// and puts endpoints that are chosen by the same selectors into one class.
//
//	egress-policies ──► selectors ────┐
//	                                  ▼
//	endpoints ────────► label-sets ──► class-members ──► classes ──► sluice_classes
//	namespaces, nodes ────────────────▲                   ▲
//	                                                gateway groups
//
// The work goes by label sets and selectors, never by endpoints: a pod whose
// labels are known changes nothing here.
package selection

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the selectors, label sets and classes.
var Cell = cell.Module(
	"selection",
	"Which selectors choose which endpoints",

	cell.ProvidePrivate(
		tables.NewSelectorTable,
		tables.NewLabelSetTable,
		tables.NewClassMemberTable,
		tables.NewClassTable,
	),
	cell.Provide(
		statedb.RWTable[*tables.Selector].ToTable,
		statedb.RWTable[*tables.LabelSet].ToTable,
		statedb.RWTable[*tables.ClassMember].ToTable,
		statedb.RWTable[*tables.Class].ToTable,
		tables.NewDesired[*tables.Class],
	),
	cell.Invoke(
		deriveSelectors,
		deriveLabelSets,
		deriveClassMembers,
		deriveClasses,
	),
)
