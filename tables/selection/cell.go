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
//
// What a class goes through, and who waits for whom meanwhile:
//
//   - It comes to be: a member gets its number. The kernel gets, one after the
//     other, what the number stands for, the class's rules, and the addresses in
//     it. Each waits for the one before (gates in reconcilers/egress).
//   - It changes its meaning and keeps its number. Addresses of members that
//     leave go elsewhere first; then sluice_classes gets the new digest, and then
//     the rules are changed. Members that left are known by ClassMember.Former.
//   - A policy changes while the classes are as before. The rules follow when
//     the class has caught up with the policy (egress-classes: all selectors are
//     evaluated, the digests agree), and when no address is about to leave.
//   - It ends: its last member is gone. Its rules go when no address is in it.
//
// Whoever waits in the kernel is looked at again when the row of the class in
// class-readiness changes, which is derived from all that gates look at.
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
