// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/stream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/reconcilers/attach"
	"github.com/sluice-net/sluice/reconcilers/bgp"
	"github.com/sluice-net/sluice/reconcilers/ctgc"
	"github.com/sluice-net/sluice/reconcilers/egressip"
	"github.com/sluice-net/sluice/reconcilers/forwarding"
	"github.com/sluice-net/sluice/reconcilers/ledger"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/reconcilers/rulesets"
	"github.com/sluice-net/sluice/reconcilers/slots"
	"github.com/sluice-net/sluice/reconcilers/sysctl"
	"github.com/sluice-net/sluice/reconcilers/tampering"
	"github.com/sluice-net/sluice/sources/events"
	"github.com/sluice-net/sluice/sources/overlaykeys"
	"github.com/sluice-net/sluice/sources/probes"
	"github.com/sluice-net/sluice/sources/traffic"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	egresstables "github.com/sluice-net/sluice/tables/egress"
	"github.com/sluice-net/sluice/tables/explain"
	forwardingtables "github.com/sluice-net/sluice/tables/forwarding"
	"github.com/sluice-net/sluice/tables/localpods"
	"github.com/sluice-net/sluice/tables/members"
	policytables "github.com/sluice-net/sluice/tables/policy"
	"github.com/sluice-net/sluice/tables/subjects"
	"github.com/sluice-net/sluice/tables/trace"
	"github.com/sluice-net/sluice/tables/verdicts"
)

// Dataflow has the modules from the base tables to the kernel: all that does
// not depend on where the base tables come from.
var Dataflow = cell.Group(
	// The rule engine's counts of rows.
	cell.Provide(newDeriveMetrics),

	// Where the pods of this node are: local-endpoints.
	localpods.Cell,

	// What policies say of pods: pods, subjects, rulesets, selectors, subject-routes,
	// egress-rulesets, egress-rules, egress-groups, compiled-policies.
	subjects.Cell,

	// What each address is as a peer: ipcache, peer-prefixes, members, peer-classes,
	// selector-matches.
	members.Cell,
	cell.Invoke(checkClusterCIDRs),

	// What rulesets say of classes: policy-entries, verdict-sets, verdicts, rule-cookies.
	verdicts.Cell,

	// network-policy-status.
	policytables.Cell,

	// Where egress traffic leaves: egress-gateways, egress-limits, egress-policy-status, sysctls.
	egresstables.Cell,

	// Which policies drop packets, as they cannot be applied.
	droppingCell,

	// What the programs know beside the policies, and where they run:
	// egress-exits, covered-prefixes, frontends, cluster-nodes, pod-devices, datapath-config,
	// overlay-devices, attachments.
	cell.Provide(
		func(c sysctl.Config) forwardingtables.Procfs { return forwardingtables.Procfs(c.Procfs) },
	),
	forwardingtables.Cell,

	// By what nodes know overlay packets of each other: overlay-keys.
	overlaykeys.Cell,

	// Which gateways this node reaches: gateway-health.
	cell.Provide(func(d *datapath.Datapath) probes.Datapath { return d }),
	probes.Cell,

	// The maps: in the kernel or in memory.
	bpf.Cell,

	// The programs, in the kernel only.
	datapath.Cell,

	// What others have changed in the kernel: tampering.
	tampering.Cell,

	// What all reconcilers of maps share, and the table bpf-maps.
	mapsync.Cell,

	// The maps' reconcilers, with the tables map-*: what the kernel holds.
	cell.Provide(mapsOf, keptVerdicts),
	rulesets.Cell,
	forwarding.Cell,

	// Which slot of maps packets use.
	slots.Cell,

	// What the programs report: drops, monitors.
	cell.Provide(func(d *datapath.Datapath) events.Datapath { return d }),
	events.Cell,
	cell.Invoke(registerDatapathMetrics),
	policyMetricsCell,

	// What the programs of a gateway have translated: egress-traffic.
	cell.Provide(func(d *datapath.Datapath) traffic.Maps { return d.Map }),
	traffic.Cell,
	cell.Invoke(registerTrafficMetrics),

	// What the tables and the maps make of a packet, and why.
	explain.Cell,

	// What comes of one policy, from its object to the maps.
	trace.Cell,

	// Egress addresses that move between nodes, and votes for their owners: egress-ip-leases,
	// egress-ip-votes.
	cell.Provide(func(d *datapath.Datapath) egressip.Datapath { return d }),
	egressip.Cell,

	// Their routes, announced to routers: egress-bgp-routes.
	bgp.Cell,

	// Programs at devices, and the overlay device.
	attach.Cell,

	// Connections that have ended: ct-gc-runs.
	cell.Provide(func(d *datapath.Datapath) ctgc.Datapath { return d }, exhausted),
	ctgc.Cell,

	// Which pod had an egress address and port, if it is to be recorded.
	cell.Provide(
		func(d *datapath.Datapath) ledger.Maps { return d.Ledger },
		func(c Config) ledger.StateDir { return ledger.StateDir(c.StateDir) },
	),
	ledger.Cell,

	// Kernel parameters.
	cell.Provide(func(c Config) sysctl.StateDir { return sysctl.StateDir(c.StateDir) }),
	sysctl.Cell,

	// The garbage collector, which waits until the tables are filled.
	startupCell,
)

// mapsOf are the maps of policies.
func mapsOf(m *bpf.Maps) rulesets.Maps {
	return rulesets.Maps{
		Pods: m.Pods, IPCache: m.IPCache, Subjects: m.Subjects, Routes: m.Routes,
		Frontends: m.Frontends,
		Peers:     m.Peers, Policy: m.Policy, Verdicts: m.Verdicts,
		Egress: m.Egress, Gateways: m.Gateways,
	}
}

// keptVerdicts says what happens to verdicts that connections keep.
func keptVerdicts(g *slots.Generation, r *ctgc.Runner) rulesets.Verdicts {
	return rulesets.Verdicts{Raise: g.Raise, RaiseSoon: g.RaiseSoon, Flush: r.RemoveReleased}
}

func newDeriveMetrics(r prometheus.Registerer) (*derive.Metrics, error) {
	m := derive.NewMetrics()
	return m, register(r, m)
}

// exhausted tells the garbage collection of what packets were dropped for.
func exhausted(s *events.Source) ctgc.Exhausted {
	signals := func(drops stream.Observable[*tables.Event]) stream.Observable[struct{}] {
		return stream.Map(drops, func(*tables.Event) struct{} { return struct{}{} })
	}
	return ctgc.Exhausted{Ports: signals(s.PortsExhausted()), Shares: signals(s.SharesUsedUp())}
}
