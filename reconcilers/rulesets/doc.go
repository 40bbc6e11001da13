// SPDX-License-Identifier: Apache-2.0

// Package rulesets keeps the maps of network policy and egress gateways equal to their tables. It
// says what must be complete in the kernel before an entry is written:
//
//	sluice_pods     address ─► subject ─┬─► sluice_subjects  subject ─► ruleset ──┐
//	                                    │                                         ├─► sluice_policy ─► verdict set
//	sluice_ipcache  prefix ──► member ──┼─► sluice_peers     member ──► class ────┘   sluice_verdicts
//	                                    └─► sluice_routes    subject ─► egress ruleset
//	                                        sluice_egress    egress ruleset ─► group ─► sluice_gateways
//
// An entry is written after everything to its right that it leads to. References form a
// chain, so there is no circular wait. In addition, a subject enters a ruleset only when the
// ruleset's selectors are effective: the kernel has every member that they select in a class
// with the selector. For the same reason it waits until the kernel has the peers in classes with
// their numbers for the names of ports in the ruleset. Prefixes of sluice_ipcache replace each
// other in an order in which no address falls back to a covering prefix with another meaning.
package rulesets
