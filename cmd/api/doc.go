// SPDX-License-Identifier: Apache-2.0

// Package api serves the tables, the health and the metrics of the agent over
// HTTP, on a TCP address and on a UNIX socket. Nothing that it serves changes
// the agent; only on the socket connections can be removed.
//
// The page is plain HTML, CSS and modules of JavaScript in web/, embedded as they
// are. It knows neither tables nor rows: it shows what the paths below answer.
//
//	/              the page, for browsers; what else there is, for others
//	/graph         how data flows from sources to programs, for the page
//	/trace         what comes of one policy, for the page
//	/statedb/...   the tables in StateDB's wire format, for its RemoteTable client
//	/tables/...    the tables as text or JSON, for people and for sluice get
//	/healthz       each module's health; fails when a loop of the agent has ended
//	/readyz        fails until the first pass is programmed
//	/status        a summary, for sluice status
//	/metrics       Prometheus
//	/monitor       drops and new flows as they happen, for sluice monitor
//	/gc            removes connections, on the socket only, for sluice ct
//	/cni/wait      answers when a pod's interface is in force, on the socket only, for sluice-cni
//	/debug/pprof/  profiles, on the socket only
//
// --metrics-listen serves /healthz, /readyz and /metrics, and nothing else, for
// Prometheus on another machine.
package api
