// SPDX-License-Identifier: Apache-2.0

// Package mapsync makes BPF maps hold what tables desire of them. Each map has a loop of
// its own.
//
//	desired table ──┐                    ┌─► map
//	gates (tables) ─┼─► loop (one round) ┼─► mirror ([tables.Mirror])
//	timers, audit ──┘                    └─► status of the desired rows
//
// A round takes what is due, some thousand entries in the order of becoming due:
//
//  1. Of a snapshot, it asks what differs from the mirror, and whether everything that an
//     entry refers to is complete in the kernel: a [Reference] names an object, and a
//     [Dependency] answers.
//  2. It announces the writes in the mirror, if other maps' objects live by it.
//  3. In a new snapshot it asks the same again: what is not desired any more, or refers to
//     something that is not complete any more, is taken back.
//  4. It writes: changes, then deletions.
//  5. It confirms in one transaction: mirror and statuses. A row that changed meanwhile
//     keeps its status, as its change is still to come.
//
// So the kernel never has an entry that the mirror does not tell of. A write that fails is
// retried with growing delays; one that was refused for room, when something was deleted.
// What waits is asked again when a table changes that the answer is from: answers depend on
// a snapshot only, so no change is missed.
//
// What a map holds when its loop starts is in the mirror before the first round.
package mapsync
