// SPDX-License-Identifier: Apache-2.0

// Package events reads what the programs report and passes it to its followers.
//
//	sluice_events ──► decode ──┬──► drops (a row for each pod, direction and reason)
//	                           └──► enrich ──► followers, each with a filter and a queue
//
// In flow records of bpf.Event, whose cookies are looked up in rule-cookies; out come the table drops, and [tables.Event]s
// for those who follow them with [Source.Follow]: a follower who is slow loses
// events and is told how many; the reader never waits. The table monitors has a
// row for each follower of new flows, which the kernel reports only as long as
// there is one. Beside that the package reads, and sweeps, the programs' counters
// of the rules of network policies.
package events
