// SPDX-License-Identifier: Apache-2.0

// Package objectstatus writes the rows of table object-status to the objects of
// policies, as their status, and tells of problems in Events. There are rows only
// while this operator leads.
//
//	object-status ──changes──► queue ──► read the object ──► write, if it says something else
//	                             ▲                                │
//	                             └── what failed, later ◄─────────┘
//
// Each write of an object goes to the watches of all agents. So all writes together,
// and the reads before them, have a limit, and so does each object: it is written
// again after 5 s, and where only numbers or words have changed after a minute. That a
// policy is pending is written when it has been for 2 s: most are programmed and
// reported by then, and their objects say so in one write. If it was written, what
// nodes report then is written at once.
// What others write to a status stays as it is until there is something to write.
package objectstatus

import (
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/record"

	"github.com/sluice-net/sluice/tables"
)

// Cell keeps the status of objects, if there is an API server to write to.
var Cell = cell.Module(
	"object-status-writer",
	"Status of objects and Events",

	cell.Invoke(register),
)

// Limits of requests a second: reads, which tell whether there is something to
// write, and writes, of Events apart. client-go bounds those: 25 at once about an
// object, and then one in 5 minutes.
const (
	readRate, readBurst   = 20, 50
	writeRate, writeBurst = 5, 10
)

type params struct {
	cell.In

	Log        *slog.Logger
	DB         *statedb.DB
	Jobs       job.Group
	Reporting  tables.Reporting
	Client     dynamic.Interface
	Recorder   record.EventRecorder
	Desired    tables.Desired[*tables.ObjectStatus]
	Registerer prometheus.Registerer `optional:"true"`
	Pace       *Pace                 `optional:"true"`
}

// Pace says how soon an object is written.
type Pace struct {
	// Settle is for how long a policy must be pending before its object says so: more
	// than nodes take to program and to report most policies.
	Settle time.Duration
	// Again is the least time between writes of an object, and Alike if it says the same
	// in other words, or of another number of nodes.
	Again, Alike time.Duration
}

var defaultPace = Pace{Settle: 2 * time.Second, Again: 5 * time.Second, Alike: time.Minute}

func register(p params) error {
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_object_status_writes_total",
		Help: "Looks at the status of objects, by what came of them.",
	}, []string{"outcome"})
	if err := tables.RegisterMetrics(p.Registerer, writes); err != nil {
		return err
	}
	if !p.Reporting.Enabled {
		return nil
	}
	w, err := newWriter(p, writes)
	if err != nil {
		return err
	}
	p.Jobs.Add(job.OneShot("write-object-status", w.run, job.WithShutdown()))
	return nil
}

func newWriter(p params, writes *prometheus.CounterVec) (*writer, error) {
	if p.Pace == nil {
		p.Pace = &defaultPace
	}
	changes, err := tables.Follow(p.DB, p.Desired.ToTable())
	if err != nil {
		return nil, err
	}
	return &writer{
		params: p, changes: changes, writes: writes,
		reading:    rate.NewLimiter(readRate, readBurst),
		writing:    rate.NewLimiter(writeRate, writeBurst),
		written:    map[tables.PolicyID]written{},
		pending:    map[tables.PolicyID]time.Time{},
		reported:   map[tables.PolicyID]reported{},
		failing:    map[tables.PolicyID]error{},
		statusless: map[tables.PolicyKind]time.Time{},
	}, nil
}
