// SPDX-License-Identifier: Apache-2.0

// Package monitoring checks deploy/monitoring with Prometheus' own libraries: that
// rules and the dashboard's queries parse and ask for metrics that exist, and that
// each alert fires when it should and only then. `make monitoring` runs it.
package monitoring
