// SPDX-License-Identifier: Apache-2.0

// Package derive keeps tables up to date that are computed from other tables, in
// proportion to what changed.
//
//	input tables ──changes──► keys ──Compute──► output tables, in one transaction
//
// A [Rule] names its inputs, the keys that a change of an input row marks, and one function
// that brings all outputs up to date for some keys. What a rule can rely on:
//
//   - Compute reads inputs from one snapshot, and outputs from its write transaction. All
//     changes that the snapshot has were marked before. Nothing but the outputs is locked.
//   - Each changed row is told once, with its former and its present value.
//   - Keys are computed in the order in which they were marked. A key that is marked again
//     while it waits keeps its place.
//   - A change that marks many keys does not hold up others, nor does a key of [Rule.Large]:
//     such keys wait in a queue of their own, of which each transaction computes a part. They
//     may be overtaken, but do not overtake.
//   - A key of [Rule.Last] is computed after all that the same change or computation marked
//     before it, and moves to the end when it is marked again. If a computation marks one
//     that it is yet to come to, it leaves it for later.
//   - A rule starts when its inputs are initialized, and its outputs are initialized when it
//     has computed everything once. A [Feedback], which follows from the outputs, is not
//     waited for.
//
// And what a rule owes: the outputs are a function of the snapshot, and of what the outputs
// were. A rule keeps no state of its own but the next number to give out.
package derive
