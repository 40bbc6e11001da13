// SPDX-License-Identifier: Apache-2.0

// Package selection answers which policies' selectors choose which endpoints,
// nodes and addresses, and puts those that are chosen by the same selectors into
// one class.
//
//	policies, rules in force ──► selectors ──┬───────────────┐
//	groups, services, backends ──▲           ▼               ▼
//	node and cluster prefixes ────────► peer-prefixes ─► class-members ──► classes ──► sluice_classes
//	endpoints, namespaces, nodes ──────────────────────────▲    ▲           ▲
//	                                                            │     gateway groups
//	who is in which class: ipcache, local-endpoints, map-* ─────┘
//
// There are three partitions into classes: by egress policies, and by network
// policies for subjects and for peers. The work goes by label sets and selectors,
// never by endpoints: a pod whose labels are known changes nothing here, unless
// its address is told apart from others by some policy.
//
// The classes of network policies have a row in class-members that says what they
// stand for, and who is still in one that belongs elsewhere: whoever brings rules
// into force or programs verdicts reads these rows, of one snapshot. See
// [policyScope] for what these classes promise; what follows is about egress.
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

	"github.com/sluice-net/sluice/tables"
)

// Cell derives the selectors and classes.
var Cell = cell.Module(
	"selection",
	"Which selectors choose which endpoints",

	cell.Config(Config{Enforcement: string(tables.EnforcementDefault)}),
	tables.Own(tables.NewSelectorTable),
	tables.Own(tables.NewPeerPrefixTable),
	tables.Own(tables.NewClassMemberTable),
	tables.OwnDesired(tables.NewClassTable),
	cell.ProvidePrivate(
		Config.cidrMatch,
	),
	cell.Provide(
		Config.enforcement,
	),
	cell.Invoke(
		deriveSelectors,
		derivePeerPrefixes,
		deriveClassMembers,
		deriveClasses,
	),
)
