// SPDX-License-Identifier: Apache-2.0

// Package gc removes connections that have ended, and their translations.
//
// In go the six maps of a set and a filter; out come counts, and each entry that
// was removed, once, with its final value. No connection that is in use is lost:
// who removes an entry condemns it first, by cmpxchg(lifetime, expired -> 0), and
// the programs that use it refresh it in the same way (bpf/programs/ct.h, collect.h).
//
//	Iterator   a program for each entry, in runs of less than a millisecond
//	ForEach    the same in one run, for small maps with few entries
//	Keys       the same for each key that is read, for large maps with hardly any
//	UserSpace  by system calls, where the kernel takes no such programs
package gc
