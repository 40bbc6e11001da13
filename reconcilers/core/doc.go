// SPDX-License-Identifier: Apache-2.0

// Package core keeps the maps of network policy and egress gateways equal to their tables,
// and says what has to be complete in the kernel before what:
//
//	sluice_pods     address ─► subject ─┬─► sluice_subjects  subject ─► ruleset ──┐
//	                                    │                                         ├─► sluice_policy ─► verdict set
//	sluice_ipcache  prefix ──► member ──┼─► sluice_peers     member ──► class ────┘   sluice_verdicts
//	                                    └─► sluice_routes    subject ─► egress ruleset
//	                                        sluice_egress    egress ruleset ─► group ─► sluice_gateways
//
// An entry is written after everything right of it that it leads to. References form a
// chain, so nothing waits in a circle. Besides, a subject enters a ruleset only when the
// selectors of the ruleset are effective: what they select is told apart in the kernel; and
// prefixes of sluice_ipcache replace one another in an order in which no address falls to a
// prefix around it that is not meant for it.
package core
