// SPDX-License-Identifier: Apache-2.0

// Package tables holds the state of the agent as rows: what it observes, what
// it derives from that, and what the kernel holds. One file is one table: row,
// columns, indexes and constructor, which [Index] and [Declare] make. [Own] is the
// table in the module that writes it.
//
//	sources ──► base tables ──► derived tables ──► desired entries ──► reconcilers
//	                                                     ▲                  │
//	                                            status   └──────────────────┤
//	                                            map-*    ◄──────────────────┘
//
// A table is written by the module that constructs it, and read by all others: the
// writer keeps the RWTable and provides the Table. Rows are immutable: to change a row
// is to insert a changed copy.
package tables
