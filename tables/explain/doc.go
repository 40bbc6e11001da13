// SPDX-License-Identifier: Apache-2.0

// Package explain says what becomes of a packet on this node, and why: by the
// tables, which are what the agent wants, and beside it by the live maps, which
// are what packets use.
//
//	pods, subjects, ipcache, members, policy-entries, verdicts, ... ──► decide ──┐
//	                                                                             ├──► difference ──► JSON, text
//	sluice_pods, sluice_subjects, sluice_ipcache, sluice_peers, ... ──► decide ──┘
//
// The same function decides from both, in the steps in which the programs do.
// A question costs look-ups only, however large the tables are.
package explain
