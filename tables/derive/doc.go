// SPDX-License-Identifier: Apache-2.0

// Package derive keeps tables that are computed from other tables up to date,
// in proportion to what changed.
//
// A derived table is declared by one [Rule]: the tables it is computed from,
// which keys of the output a row of each of them affects, and the rows wanted
// under a key, as a function of a snapshot. The engine does the rest:
//
//	input tables ──changes──► affected keys ──Rows──► rows wanted ──diff──► output table
//	                                            ▲                             │
//	                                            └────── former output ◄───────┘
//
// What a rule can rely on, and what it promises in turn:
//
//   - A changed row affects the keys of its old value and those of its new one.
//     The engine remembers the old value, which StateDB's changes do not carry.
//   - The keys of all changes that a snapshot has are one round: one snapshot, one
//     write transaction, each key computed once. Changes that affect none cost no
//     transaction, and those that an [Indexed] input leaves out, or one that sleeps
//     for a [While], no look either.
//   - Only rows that differ are written, so status and revision of the others
//     stay. Within the transaction, inserts precede deletes.
//   - A row of the output belongs to exactly one key, and Rows is a function of
//     its snapshot alone. The table then never depends on the order in which,
//     or the pieces in which, its inputs changed. A rule that allocates numbers
//     is a function of the snapshot too, for that includes its own former output.
//     So does one that remembers: local-endpoints keeps a pod's device when the
//     kernel forgets how it was found, and there, and only there, a computation
//     from scratch may say less than the table does.
//   - A rule starts when all its inputs are initialized, and marks its output
//     initialized with its first round. So a derived table never has a row that
//     is wrong because an input was incomplete, and nothing downstream deletes
//     on account of one. Only a [Feedback], which follows from the output itself,
//     is not waited for. With Await it waits a moment longer, where that saves work.
//   - Rules do not chain in one transaction: the output of one is the input of
//     the next, a commit and a wake-up later, which takes some 20 microseconds.
//
// [Stats] counts rows and keys, exactly: tests assert on the counts, and they
// are published as metrics. The example of reconcilers/bpfmap has a whole rule, from
// what is observed to a map.
package derive
