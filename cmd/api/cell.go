// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/ctgc"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/sources/events"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/explain"
	"github.com/sluice-net/sluice/tables/trace"
)

// ListenCell provides the [Server] and has it listen before anything else starts: it
// goes before all cells whose start takes time, as loading programs does on a busy
// node. Until everything has started the server answers only probes.
var ListenCell = cell.Module(
	"api-listener",
	"Listeners of the HTTP API",

	cell.Config(DefaultConfig),
	cell.Provide(newServer),
	cell.Invoke(func(*Server) {}),
)

// Cell has the [Server] answer all requests once the cells before it have started, and
// provides the script command http/get, which asks the same handlers without a
// connection. It needs [ListenCell].
var Cell = cell.Module(
	"api",
	"HTTP API",

	cell.Provide(scriptCommands),
	cell.ProvidePrivate(newCNIWaiter),
	cell.Invoke(handle),
)

// Config says where the API is served.
type Config struct {
	APIListen     string
	MetricsListen string
	Socket        string
}

// DefaultConfig serves this machine only.
var DefaultConfig = Config{APIListen: "127.0.0.1:9880", Socket: "/run/sluice/sluice.sock"}

// Flags implements [cell.Flagger].
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.String("api-listen", c.APIListen, "address and port of the HTTP API, empty for none")
	flags.String("metrics-listen", c.MetricsListen, "address and port of /metrics, /healthz, /readyz and /startupz alone, for others than this machine; empty for none")
	flags.String("socket", c.Socket, "UNIX socket of the HTTP API, empty for none")
}

func (c Config) validate() error {
	for flag, address := range map[string]string{
		"--api-listen": c.APIListen, "--metrics-listen": c.MetricsListen,
	} {
		if err := checkAddress(flag, address); err != nil {
			return err
		}
	}
	return nil
}

func checkAddress(flag, address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s %q is not address:port: %w", flag, address, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%s %q: %q is not a port number", flag, address, port)
	}
	return nil
}

// loopback reports whether only this machine can reach an address:port.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

type listenParams struct {
	cell.In

	Log        *slog.Logger
	Lifecycle  cell.Lifecycle
	Shutdowner hive.Shutdowner
	Config     Config
}

func newServer(p listenParams) (*Server, error) {
	if err := p.Config.validate(); err != nil {
		return nil, err
	}
	if p.Config.APIListen == "" && p.Config.Socket == "" {
		return nil, errors.New(
			"--api-listen and --socket are both empty: nothing could tell what the agent does",
		)
	}
	s := &Server{
		log: p.Log, shutdowner: p.Shutdowner, config: p.Config,
		headerTimeout: readHeaderTimeout, maxConnections: maxConnections,
	}
	p.Lifecycle.Append(cell.Hook{OnStart: s.start, OnStop: s.stop})
	return s, nil
}

type params struct {
	cell.In

	Log       *slog.Logger
	Lifecycle cell.Lifecycle
	Reporter  cell.Health
	Server    *Server

	DB        *statedb.DB
	Health    statedb.Table[*tables.Health]
	Readiness []tables.Readiness `group:"ready"`
	Metrics   prometheus.Gatherer
	Register  prometheus.Registerer
	Node      tables.LocalNode
	Events    *events.Source `optional:"true"`
	GC        *ctgc.Runner   `optional:"true"`
	Maps      *bpf.Maps      `optional:"true"`

	Explain *explain.Explainer `optional:"true"`
	Tables  statusTables
	Trace   *trace.Builder `optional:"true"`

	CNI *cniWaiter `optional:"true"`

	Sources []tables.Source  `group:"sources"`
	Rules   *derive.Metrics  `optional:"true"`
	Control *mapsync.Control `optional:"true"`
}

// handle gives the server its handlers.
func handle(p params) error {
	flow, err := newDataflow(p)
	if err != nil {
		return err
	}
	s := p.Server
	s.health = p.Reporter
	s.handlers = &handlers{
		log:     p.Log,
		db:      p.DB,
		health:  p.Health,
		ready:   p.Readiness,
		metrics: p.Metrics,
		node:    p.Node,
		events:  p.Events,
		explain: p.Explain,
		tables:  p.Tables,
		started: time.Now(),
		limits:  newLimits(),

		metricsLimits: newLimits(),
		socketLimits:  newLimits(),

		trace: p.Trace,
		flow:  flow,
		cni:   p.CNI,
		begun: make(chan struct{}),
	}
	if p.GC != nil {
		s.handlers.collector = p.GC
	}
	if p.Maps != nil {
		s.handlers.mapsDir = func() string {
			kernel, ok := p.Maps.Backend().(*bpf.Kernel)
			if !ok {
				return ""
			}
			if dir, err := filepath.Abs(kernel.Dir()); err == nil {
				return dir
			}
			return kernel.Dir()
		}
	}
	if err := registerMetrics(p.Register, s.handlers); err != nil {
		return fmt.Errorf("register metrics of the API: %w", err)
	}
	p.Lifecycle.Append(cell.Hook{OnStart: s.begin, OnStop: s.stop})
	return nil
}

func registerMetrics(r prometheus.Registerer, h *handlers) error {
	errs := []error{r.Register(h.readyMetric())}
	for listener, l := range map[string]*limits{
		"api": h.limits, "metrics": h.metricsLimits, "socket": h.socketLimits,
	} {
		r := prometheus.WrapRegistererWith(prometheus.Labels{"listener": listener}, r)
		errs = append(errs, r.Register(l))
	}
	return errors.Join(errs...)
}
