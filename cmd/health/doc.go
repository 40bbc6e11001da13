// SPDX-License-Identifier: Apache-2.0

// Package health keeps what each part of the agent says about itself in the
// table health.
//
//	modules, jobs ──► cell.Health ──► health ──► /healthz, sluice get health
//
// Repeating a report costs no transaction, so loops may report every round.
package health
