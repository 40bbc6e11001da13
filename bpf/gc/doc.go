// SPDX-License-Identifier: Apache-2.0

// Package gc removes connections that have ended, and their translations.
//
// In go the six maps of a set and a filter; out come counts, and each removed entry,
// once, with its final value. A connection in use is never lost: a BPF program condemns
// an entry by cmpxchg(lifetime, expired -> 0) before it deletes it, and the programs that
// use the entry refresh it in the same way (bpf/programs/ct.h, collect.h).
//
// A map is gone through by one of two methods:
//
//	Iterator  the kernel runs the program for each entry, in runs of less than a millisecond
//	Keys      the agent reads the keys, and runs the program for each: for nearly empty maps
package gc
