// SPDX-License-Identifier: Apache-2.0

// Package mapsync makes BPF maps hold what tables desire of them. Each map has a loop of
// its own.
//
//	desired table ──┐                    ┌─► map
//	gates (tables) ─┼─► loop (one round) ┼─► mirror ([tables.Mirror])
//	timers, audit ──┘                    └─► status of the desired rows
//
// A round takes entries that are due, some thousand at most. Objects with many entries and others
// take turns:
//
//  1. In a snapshot, it finds what differs from the mirror, and checks that everything that an
//     entry refers to is complete in the kernel: a [Reference] names an object, and a
//     [Dependency] answers.
//  2. It announces the writes in the mirror, if the life of other objects depends on it.
//  3. In a new snapshot it checks the same again. It withdraws writes that are not desired any
//     more, or whose references are not complete any more.
//  4. It writes: changes, then deletions.
//  5. It confirms in one transaction: mirror and statuses. A row that changed meanwhile
//     keeps its status, as its change is still to come.
//
// So the kernel never has an entry that is not in the mirror. A failed write is retried with
// growing delays, or, if the map was full, after a deletion. An item that waits is checked again
// when a table of its condition changes. Conditions read snapshots only, so no change is missed.
//
// Before the first round the mirror has what the map holds.
package mapsync
