// SPDX-License-Identifier: Apache-2.0

// Package probes finds out which gateways this node reaches:
//
//	probe-targets, nodes, datapath-config, overlay-keys ──► probes ──► gateway-health
//
// A probe goes over the overlay, as packets of flows do, and the programs of the other node answer
// it: the agent there need not run. Probes are proven by the keys of the overlay; without a key
// there are none. A node that has packets of flows from another one needs few probes.
package probes

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
)

// Cell probes gateways: gateway-health.
var Cell = cell.Module(
	"probes",
	"Probes of gateways",

	cell.Config(DefaultConfig),
	tables.Own(tables.NewGatewayHealthTable),
	cell.Provide(source),
	cell.Invoke(register),
)

// Config says how gateways are probed.
type Config struct {
	GatewayProbeInterval time.Duration // 0: they are not
	GatewayProbeFailures int
}

// DefaultConfig finds a gateway lost 175 to 250 ms after its death: three probes are sent, the last
// of which has a third of the interval to be answered.
var DefaultConfig = Config{GatewayProbeInterval: 75 * time.Millisecond, GatewayProbeFailures: 3}

const (
	minInterval = 10 * time.Millisecond
	maxInterval = 10 * time.Second
	maxFailures = 20
)

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("gateway-probe-interval", c.GatewayProbeInterval,
		"Time between probes of a gateway that is in doubt; 0 does not probe "+
			"gateways: whether their Nodes are ready decides alone")
	flags.Int("gateway-probe-failures", c.GatewayProbeFailures,
		"Probes in succession without an answer after which a gateway is lost")
}

func (c Config) validate() error {
	if i := c.GatewayProbeInterval; i != 0 && (i < minInterval || i > maxInterval) {
		return fmt.Errorf("flag --gateway-probe-interval: %s: want 0, or %s to %s",
			i, minInterval, maxInterval)
	}
	if n := c.GatewayProbeFailures; n < 1 || n > maxFailures {
		return fmt.Errorf("flag --gateway-probe-failures: %d: want 1 to %d", n, maxFailures)
	}
	return nil
}

func source(health statedb.RWTable[*tables.GatewayHealth]) tables.SourceOut {
	return tables.NewSourceOut("probe-answers", health)
}

// Datapath is what answers probes, once it has started.
type Datapath interface {
	// Loaded reports whether there are programs.
	Loaded() bool
	// Map returns a map of the programs by its name, nil if there is none.
	Map(name string) *ebpf.Map
}

type params struct {
	cell.In

	Config     Config
	DB         *statedb.DB
	Log        *slog.Logger
	Jobs       job.Group
	Datapath   Datapath
	Targets    statedb.Table[*tables.ProbeTarget]
	Nodes      statedb.Table[*tables.Node] // how many there are
	Settings   statedb.Table[*tables.DatapathConfig]
	Keys       statedb.Table[*tables.OverlayKeys]
	Health     statedb.RWTable[*tables.GatewayHealth]
	Registerer prometheus.Registerer `optional:"true"`
}

// register adds the job that probes. The table is initialized when each gateway has answered, or
// has had the time to: an agent that starts knows which are lost before packets use its rows.
func register(p params) error {
	if err := p.Config.validate(); err != nil {
		return err
	}
	m := newMetrics()
	if p.Registerer != nil {
		for _, c := range m.all() {
			if err := p.Registerer.Register(c); err != nil {
				return err
			}
		}
	}
	wtxn := p.DB.WriteTxn(p.Health)
	initialized := p.Health.RegisterInitializer(wtxn, "first-probes")
	wtxn.Commit()
	pr := &prober{
		params: p, metrics: m, initialized: initialized, paths: map[string]*path{}, open: openSocket,
		settings: settings{p.Config.GatewayProbeInterval, p.Config.GatewayProbeFailures},
	}
	p.Jobs.Add(job.OneShot("probe-gateways", pr.run, job.WithShutdown()))
	return nil
}

type metrics struct {
	probes *prometheus.CounterVec
	paths  *prometheus.GaugeVec
}

func newMetrics() *metrics {
	return &metrics{
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_gateway_probes_total",
			Help: "Probes of gateways and witnesses: sent, answered, failed to be sent.",
		}, []string{"outcome"}),
		paths: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_gateway_paths",
			Help: "Gateways and witnesses that this node probes, by the state of the path to them.",
		}, []string{"state"}),
	}
}

func (m *metrics) all() []prometheus.Collector { return []prometheus.Collector{m.probes, m.paths} }

func openSocket(o frames.Overlay) (transport, error) { return frames.Open(o) }
