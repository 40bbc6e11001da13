// SPDX-License-Identifier: Apache-2.0

// Package bpf has the maps that the agent writes and the programs read.
//
// In flow entries, in an order that matters and that reconcilers decide; out
// come entries of BPF maps pinned under <bpffs>/sluice, or of maps in memory
// that behave like them. Keys and values are structs without implicit padding:
// their bytes are what the kernel programs see (types.go).
//
//	Map      one map: batches of updates and deletions, applied in their order
//	Kernel   back end of pinned kernel maps, one user at a time
//	Memory   back end in memory: records every write, fails on demand, can be watched
//	Cell     opens the agent's maps in the back end that --bpf selects
package bpf
