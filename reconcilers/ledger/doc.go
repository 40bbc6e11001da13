// SPDX-License-Identifier: Apache-2.0

// Package ledger writes down which pod had an egress address and port towards a destination, and
// from when to when: for questions that come later from outside, by an address, a port and a time.
//
//	sluice_ledger ──► reader ──┬──► queue ──► file of JSON lines, which rotates
//	endpoints, nodes ──► names ┘──► queue ──► OpenTelemetry logs by OTLP/HTTP
//	sluice_nat4, sluice_nat6 ──► open set ──► begins and ends that no record has
//
// The programs write a record to the ring buffer when a translation begins, and one when it
// ends (bpf/programs/ledger.h); the reader adds the names of the pod and its node. No program sees
// that the kernel evicts a translation from a full map: the open set has those that have no end
// yet, and those of them that the maps have no more were evicted.
//
// A record that is lost on the way is counted, and a [Record] at the place says how many are
// missing: the kernel counts those that the ring buffer has no room for, a queue those that its
// output did not take. An agent notes in the kernel how many records it has in hand: if it was
// killed, the next one says how many that were, and begins what goes on again. [Search] answers
// from the files. Without an output there is no ledger, and nothing of this costs anything.
package ledger
