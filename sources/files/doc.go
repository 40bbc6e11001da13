// SPDX-License-Identifier: Apache-2.0

// Package files reads objects from a directory of manifests, and follows it.
//
//	*.yaml, *.yml, *.json ──► files, each with its last good objects ──► one transaction ──► tables
//
// A file counts as a whole: while it cannot be read, what it said last stays. Of
// an object that is in two files, the one in the first file by name counts.
package files
