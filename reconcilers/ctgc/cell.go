// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/stream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/reconcilers/tampering"
	"github.com/sluice-net/sluice/tables"
)

// Cell provides the [Runner] and the table ct-gc-runs, and has passes made from
// when the endpoints are known.
var Cell = cell.Module(
	"ctgc",
	"Removal of connections that have ended",

	cell.Config(DefaultConfig),
	tables.Own(tables.NewCTGCRunTable),
	cell.Provide(
		provide,
		func(runs statedb.RWTable[*tables.CTGCRun]) tables.SourceOut {
			return tables.NewSourceOut("connections", runs)
		},
		commands,
	),
	cell.Invoke(register),
)

// Config says when passes are made.
type Config struct {
	CTGCInterval    time.Duration `mapstructure:"ct-gc-interval"`
	CTGCMaxInterval time.Duration `mapstructure:"ct-gc-max-interval"`
}

// DefaultConfig has the interval follow what passes find.
var DefaultConfig = Config{CTGCMaxInterval: 30 * time.Minute}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("ct-gc-interval", c.CTGCInterval, "Time between passes through the maps of connections, 5s at least; 0: by the share that has expired")
	flags.Duration(
		"ct-gc-max-interval", c.CTGCMaxInterval,
		"Most time between these passes, while any may have expired",
	)
}

func (c Config) validate() error {
	switch {
	case c.CTGCInterval != 0 && c.CTGCInterval < DefaultTiming.Poll:
		return fmt.Errorf(
			"--ct-gc-interval %s: want 0, or %s at least, which is how often entries are counted",
			c.CTGCInterval, DefaultTiming.Poll,
		)
	case c.CTGCMaxInterval < minInterval:
		return fmt.Errorf(
			"--ct-gc-max-interval %s is less than %s, the least time between passes", c.CTGCMaxInterval,
			minInterval,
		)
	}
	return nil
}

// Exhausted tells when packets were dropped for want of what garbage may take.
type Exhausted struct {
	Ports  stream.Observable[struct{}] // there was no port to translate to
	Shares stream.Observable[struct{}] // a pod had its share of connections or ports
}

type params struct {
	cell.In

	Config     Config
	Timing     *Timing `optional:"true"`
	Log        *slog.Logger
	DB         *statedb.DB
	Datapath   Datapath
	Maps       *bpf.Maps
	Control    *mapsync.Control
	Runs       statedb.RWTable[*tables.CTGCRun]
	Node       tables.LocalNode
	Events     record.EventRecorder  `optional:"true"`
	Registerer prometheus.Registerer `optional:"true"`
}

func provide(p params) (*Runner, error) {
	if err := p.Config.validate(); err != nil {
		return nil, err
	}
	m := newMetrics()
	if err := tables.RegisterMetrics(p.Registerer, m.all()...); err != nil {
		return nil, err
	}
	r := newRunner()
	if p.Timing != nil {
		r.timing = *p.Timing
	}
	o := &opener{p.Datapath, p.Config}
	r.log, r.loaded, r.open = p.Log, p.Datapath.Loaded, o.global
	r.clusters = func(sets []*set) ([]*set, error) {
		kernel, ok := p.Maps.Backend().(*bpf.Kernel)
		if !ok {
			return nil, nil
		}
		return o.clusters(kernel.Dir(), sets)
	}
	r.packets = packets(p.Datapath)
	r.fragments = func() ([]tables.BPFMap, error) { return fragments(p.Datapath) }
	r.reporter = &reporter{
		log: p.Log, db: p.DB, runs: p.Runs, metrics: m,
		maps:   func(rows ...tables.BPFMap) error { return p.Control.Show(p.DB, rows...) },
		unshow: func(names ...string) error { return p.Control.Hide(p.DB, names...) },
	}
	if p.Events != nil {
		r.reporter.event = func(message string) {
			p.Events.Event(
				tampering.NodeReference(p.Node.Name), corev1.EventTypeWarning, eventReason, message)
		}
	}
	return r, nil
}

// eventReason is the reason of Events.
const eventReason = "LittleRoomForConnections"

type jobs struct {
	cell.In

	Runner    *Runner
	Jobs      job.Group
	DB        *statedb.DB
	Endpoints statedb.Table[*tables.Endpoint]
	Nodes     statedb.Table[*tables.Node]
	Maps      *bpf.Maps `optional:"true"`
	Exhausted Exhausted `optional:"true"`
}

func register(j jobs) error {
	w := newWatcher(j.Runner, j.DB, j.Endpoints, j.Nodes)
	if j.Maps != nil {
		w.former = j.Maps.FormerPods
	}
	j.Jobs.Add(job.OneShot("collect", j.Runner.run), job.OneShot("follow-endpoints", w.run))
	if j.Exhausted != (Exhausted{}) {
		follow := func(name, reason string, drops stream.Observable[struct{}]) {
			j.Jobs.Add(job.Observer(name, func(context.Context, struct{}) error {
				j.Runner.exhausted(reason)
				return nil
			}, drops))
		}
		follow("follow-ports", ReasonPortsExhausted, j.Exhausted.Ports)
		follow("follow-shares", ReasonSharesUsedUp, j.Exhausted.Shares)
	}
	return nil
}
