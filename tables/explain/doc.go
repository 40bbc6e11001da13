// SPDX-License-Identifier: Apache-2.0

// Package explain says whether a packet passes on this node, and why: by the tables, which
// have the desired state, and by the live maps, which packets use.
//
//	pods, subjects, ipcache, members, policy-entries, verdicts, ... ──► decide ──┐
//	                                                                             ├──► difference ──► JSON, text
//	sluice_pods, sluice_subjects, sluice_ipcache, sluice_peers, ... ──► decide ──┘
//
// The same function decides from both, in the same steps as the programs. An answer costs a
// few lookups, however large the tables are.
package explain
