// SPDX-License-Identifier: Apache-2.0

// Package bgp announces the egress addresses that move and that this node has to routers, one
// route an address:
//
//	egress-ip-leases ──► egress-bgp-routes ──┬──► sessions with routers
//	egress-bgp-sessions ─────────────────────┘          │
//	     ▲── state of each session ─────────────────────┘
//
// A route is announced while the address is at its device, with a metric that is less for each
// later owner: routers take the route of the present one while that of a former one is still there.
//
// Sessions are opened by this node only: nothing listens. What routers announce is not used. An
// agent that stops leaves the routes to the graceful restart of RFC 4724: the programs go on.
package bgp

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
)

// Cell announces egress addresses by BGP, if that is wanted.
var Cell = cell.Module(
	"egress-bgp",
	"Egress addresses announced to routers",

	tables.Own(tables.NewEgressBGPRouteTable),
	cell.Provide(func(t statedb.RWTable[*tables.EgressBGPRoute]) tables.SourceOut {
		return tables.NewSourceOut("egress-bgp-announcements", t)
	}),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Jobs       job.Group
	Lifecycle  cell.Lifecycle
	Reconciler reconciler.Params
	Enabled    tables.EgressBGP
	LocalNode  tables.LocalNode
	Nodes      statedb.Table[*tables.Node]
	Leases     statedb.Table[*tables.EgressIPLease]
	Routes     statedb.RWTable[*tables.EgressBGPRoute]
	Sessions   tables.Desired[*tables.EgressBGPSession]
}

const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 30 * time.Second

	// gracefulRestart is for how long routers keep the routes of an agent that restarts.
	gracefulRestart = 30 * time.Second
)

func register(p params) error {
	if !p.Enabled.Enabled {
		return nil
	}
	_, err := newAnnouncer(p)
	return err
}

// newAnnouncer registers what announces.
func newAnnouncer(p params) (*announcer, error) {
	s := newSpeaker(gracefulRestart)
	a := &announcer{params: p, speaker: s, begun: make(chan struct{})}
	p.Lifecycle.Append(s)
	_, err := reconciler.Register(
		p.Reconciler, p.Routes,
		tables.Clone[tables.EgressBGPRoute],
		tables.WithStatus[tables.EgressBGPRoute],
		(*tables.EgressBGPRoute).GetStatus,
		&routeOps{speaker: s, announced: map[netip.Addr]bool{}}, nil,
		reconciler.WithName("routes"), reconciler.WithoutPruning(),
		reconciler.WithRetry(retryFirst, retryLast),
	)
	if err != nil {
		return nil, err
	}
	_, err = reconciler.Register(
		p.Reconciler, p.Sessions.RWTable,
		tables.Clone[tables.EgressBGPSession],
		tables.WithStatus[tables.EgressBGPSession],
		(*tables.EgressBGPSession).GetStatus,
		&sessionOps{speaker: s, begun: a.begun, installed: map[string]tables.BGPSettings{}}, nil,
		reconciler.WithName("sessions"), reconciler.WithoutPruning(),
		reconciler.WithRetry(retryFirst, retryLast),
	)
	if err != nil {
		return nil, err
	}
	p.Jobs.Add(job.OneShot("announce-egress-ips", a.run, job.WithShutdown()))
	p.Jobs.Add(job.OneShot("follow-sessions", a.followSessions, job.WithShutdown()))
	return a, nil
}
