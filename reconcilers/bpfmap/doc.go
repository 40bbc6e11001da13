// SPDX-License-Identifier: Apache-2.0

// Package bpfmap makes BPF maps hold what tables desire of them.
//
// Into a reconciler flow the rows of one desired table, and the table of class
// readiness by which maps wait for one another. Out of it flow the writes to one
// map, in an order in which no packet meets a decision that is neither its old
// nor its new one, the status of each row, and the map's mirror table, which
// says what the kernel holds. Register one per map.
//
//	desired table ─┐                      ┌─► map       (the order of Plan)
//	readiness     ─┼─► loop (one round) ──┼─► mirror    (what the map holds)
//	timers, audit ─┘                      └─► status of the desired rows
//
// All that is pending at the moment of a look at the tables is one change and is
// written in one round, at once:
//
//  1. collect the rows that changed, whose retry is due, whose gate may have
//     opened, and what is tied to these by order;
//  2. compare with the mirror: equal rows need no write;
//  3. say in the mirror what is about to change or go, for the gates of others,
//     if any look at it;
//  4. plan the writes; make them, less those whose gate is closed and those that
//     must not happen before one that failed;
//  5. write statuses and mirror in one transaction.
//
// What fails is retried with growing delays until it succeeds: a row until its
// value is in the map, a removal until the kernel has confirmed it. What was
// refused for room is retried at once when something was deleted. What waits for
// its gate is looked at with such delays too, lest it miss that this has opened.
//
// Nothing is written before the desired table is initialized. The map of a slot is new
// then, and no packet looks into it until all maps have what is desired: see package
// slots, which asks [Control.Unsettled].
package bpfmap
