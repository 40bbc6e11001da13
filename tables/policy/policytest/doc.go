// SPDX-License-Identifier: Apache-2.0

// Package policytest says from first principles what network policies make of a
// packet, and makes up worlds of pods, nodes and policies in which they overlap.
// It is for tests: base tables flow in, verdicts and manifests flow out. It has
// nothing in common with what derives the kernel's entries.
package policytest
