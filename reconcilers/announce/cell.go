// SPDX-License-Identifier: Apache-2.0

// Package announce tells the agents of other nodes the addresses of pods of this node
// that are new, or whose sandbox was made anew. They learn an address from the pod's
// status otherwise, which has it about a second after the pod started, and drop its
// connections until then, or take the pod for the one that had the address before. It also
// tells them the addresses of this node that its Node object does not have, such as those of a
// gateway towards the outside: what pods send to a node does not leave by an egress gateway.
//
//	endpoints, cni-attachments, node-addresses ──► EndpointSlices sluice-<node>-ipv4, -ipv6
//
// The slices are in the namespace of the agents, of no service, and left alone by
// controllers and proxies by their labels. All agents watch EndpointSlices anyway.
//
// A pod is announced while its status differs from its interface, and the announcement
// counts only while the status is that which it differs from: no other order of what
// agents see matters, and a stale one counts no more once the status has changed. What is no
// longer needed goes with the next write: a batch of new pods takes one write, and nothing is
// written at rest. Only what counts and is wrong is withdrawn at once. What was last said is
// in pod-announcements.
package announce

import (
	"log/slog"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"

	"github.com/sluice-net/sluice/tables"
)

// Cell announces pods, if the CNI plugin tells of them, and this node's addresses, if there is an
// API server.
var Cell = cell.Module(
	"announce",
	"Addresses of new pods and of this node for other nodes",

	tables.Own(tables.NewPodAnnouncementTable),
	cell.Provide(
		func(t statedb.RWTable[*tables.PodAnnouncement]) tables.SourceOut {
			return tables.NewSourceOut("announcer", t)
		},
	),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Log             *slog.Logger
	DB              *statedb.DB
	Jobs            job.Group
	Plugin          tables.CNIPlugin
	Client          dynamic.Interface
	Namespace       tables.AgentNamespace
	LocalNode       tables.LocalNode
	Endpoints       statedb.Table[*tables.Endpoint]
	Attachments     statedb.Table[*tables.CNIAttachment]
	Backends        statedb.Table[*tables.BackendSlice]
	Nodes           statedb.Table[*tables.Node]
	Addresses       statedb.Table[*tables.NodeAddress]
	EgressPolicies  statedb.Table[*tables.EgressPolicy]
	NetworkPolicies statedb.Table[*tables.NetworkPolicy]
	Announcements   statedb.RWTable[*tables.PodAnnouncement]
	Registerer      prometheus.Registerer `optional:"true"`
}

func register(p params) error {
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_pod_announcements_total",
		Help: "Writes of EndpointSlices that tell other nodes of new pods and this node's addresses.",
	}, []string{"outcome"})
	if err := tables.RegisterMetrics(p.Registerer, writes); err != nil {
		return err
	}
	if p.Client != nil {
		p.Jobs.Add(job.OneShot("announce", newAnnouncer(p, writes).run))
	}
	return nil
}
