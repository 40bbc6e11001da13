// SPDX-License-Identifier: Apache-2.0

// Package core has the rows of the tables between policies and the kernel: numbered objects
// that never change, and entries that refer to them.
//
//	pods      address ─► subject ─┬─► subjects  subject ─► ruleset ──┐
//	                              │                                  ├─► policy-entries ─► verdict set ─► verdicts
//	ipcache   prefix ──► member ──┼─► members   member ──► class ────┘
//	                              └─► routes    subject ─► egress ruleset ─► egress-rules ─► group
//
// What a number stands for never changes, and no number is used twice. To change something,
// a rule makes the new object under a new number; the reconciler writes it completely; then
// one write switches what refers to it; and the old object is removed when nothing refers
// to it.
package core
