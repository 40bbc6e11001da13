// SPDX-License-Identifier: Apache-2.0

// Package ctgc has connections that have ended, and their translations, removed
// from the maps of the programs, when it is worth it.
//
//	counters of the maps ──┐                       ┌──► passes of bpf/gc
//	addresses that go ─────┼──► runner (one loop) ─┼──► ct-gc-runs, bpf-maps
//	ports run out ─────────┤                       └──► observers of removals
//	requests ──────────────┘
//
// Passes are made one at a time. The runner counts the entries every few seconds,
// which costs microseconds, and makes a pass when some may have expired: see
// schedule. Nothing is removed for age before the endpoints are known; a request
// is served at once.
package ctgc
