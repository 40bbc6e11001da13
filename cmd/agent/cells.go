// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/reconcilers/announce"
	"github.com/sluice-net/sluice/reconcilers/cni"
	"github.com/sluice-net/sluice/reconcilers/compat"
	"github.com/sluice-net/sluice/reconcilers/taint"
	"github.com/sluice-net/sluice/sources"
	"github.com/sluice-net/sluice/sources/netlink"
)

// Cell has the modules of the agent, in the order in which data flows.
var Cell = cell.Group(
	// Probes are answered from the beginning.
	api.ListenCell,

	// Objects of the cluster, from the API server or from files: nodes,
	// namespaces, endpoints, services, egress-policies.
	sources.Cell,

	// The kernel's network: devices, node-addresses, routes, neighbours.
	netlink.Cell,

	// What follows from them, and its way into the kernel.
	Dataflow,
	cell.Provide(kernelPreflight),

	// The status of policies, for the operator: node-report.
	Reporting,
	apiWritersCell,

	// Addresses of new pods, announced to other nodes: pod-announcements.
	announce.Cell,

	// That pods may be started here: the taint of this node goes.
	taint.Cell,

	// What else runs on the node and would bypass it.
	compat.Cell,

	// The chained plugin in the node's CNI configuration: cni-config.
	cell.Provide(func(c api.Config) cni.Socket { return cni.Socket(c.Socket) }),
	cni.Cell,

	// What of all that is a metric of its own.
	cell.Invoke(registerStateMetrics),

	// Whether there is room for what must outlive the agent.
	stateDirCell,

	// The tables, health and metrics over HTTP.
	api.Cell,

	// The script commands of all modules, for sluice shell. Its socket is beside
	// the API's: see locate.
	shellCell,
)
