// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Of an operator that is populated, and not started.
		goleak.IgnoreTopFunction("k8s.io/client-go/tools/record.NewBroadcaster.func1"),
		goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*Broadcaster).loop"))
}

// start starts a hive with flags, and stops it with the test.
func start(t *testing.T, h *hive.Hive, args ...string) error {
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse(args))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError+1))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	return h.Start(log, t.Context())
}

// observed is what the tests want of a hive.
type observed struct {
	cell.In

	DB       *statedb.DB
	Health   statedb.Table[*tables.Health]
	Node     tables.LocalNode
	Gatherer prometheus.Gatherer
}

func (o observed) health(id string) *tables.Health {
	row, _, _ := o.Health.Get(o.DB.ReadTxn(), tables.HealthByID(id))
	return row
}

// module is a module that uses what each module gets.
func module(cells ...cell.Cell) cell.Cell {
	return cell.Module("some-module", "Some module", cells...)
}

func TestModulesGetTheirOwn(t *testing.T) {
	t.Setenv("NODE_NAME", "from-downward-api")
	var o observed
	h := New(
		module(cell.Invoke(func(jobs job.Group, h cell.Health, db *statedb.DB, r prometheus.Registerer) error {
			h.OK("here")
			jobs.Add(job.OneShot("waits", func(ctx context.Context, _ cell.Health) error {
				<-ctx.Done()
				return nil
			}), job.OneShot("fails", func(context.Context, cell.Health) error { return errors.New("bad") }))
			return r.Register(prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_some_total"}))
		})),
		cell.Invoke(func(in observed) { o = in }),
	)
	require.NoError(t, start(t, h))
	require.Equal(t, "from-downward-api", o.Node.Name)
	require.Equal(t, "here", o.health("some-module").Message)
	await.True(t, func() bool {
		waits, fails := o.health("some-module.job-waits"), o.health("some-module.job-fails")
		return waits != nil && fails != nil && fails.Ended
	})

	families, err := o.Gatherer.Gather()
	require.NoError(t, err)
	var names []string
	for _, family := range families {
		names = append(names, family.GetName())
	}
	require.Subset(t, names, []string{
		"sluice_some_total", "sluice_table_rows", "sluice_agent_phase_seconds", "sluice_job_errors_total",
		"sluice_table_write_seconds", "go_goroutines", "process_open_fds",
	})
}

func TestNodeName(t *testing.T) {
	t.Setenv("NODE_NAME", "from-downward-api")
	node, err := localNode(Config{NodeName: "from-flag"})
	require.NoError(t, err)
	require.Equal(t, "from-flag", node.Name)

	t.Setenv("NODE_NAME", "")
	node, err = localNode(Config{})
	require.NoError(t, err)
	require.NotEmpty(t, node.Name, "the host name")
}

func preflight(name string, err error) cell.Cell {
	return cell.Provide(func() tables.PreflightOut {
		return tables.PreflightOut{Preflight: tables.Preflight{Name: name, Check: func(context.Context) error { return err }}}
	})
}

func TestPreflightRefuses(t *testing.T) {
	started := false
	var o observed
	h := New(
		module(
			cell.Invoke(func(lc cell.Lifecycle) {
				lc.Append(cell.Hook{OnStart: func(cell.HookContext) error { started = true; return nil }})
			}),
			preflight("routing", errors.New("host routing bypasses the hooks")),
			preflight("gateway", errors.New("another gateway is on")),
			preflight("fine", nil),
		),
		cell.Invoke(func(in observed) { o = in }),
	)
	err := start(t, h)
	require.ErrorContains(t, err, "preflight routing: host routing bypasses the hooks")
	require.ErrorContains(t, err, "preflight gateway: another gateway is on")
	require.False(t, started, "nothing starts before the checks passed")
	require.Equal(t, cell.StatusDegraded, o.health("preflight.routing").Level)
	require.Equal(t, cell.StatusOK, o.health("preflight.fine").Level)
}

func TestPreflightWarns(t *testing.T) {
	var o observed
	h := New(module(preflight("kernel", tables.Warning{Reason: "old"})), cell.Invoke(func(in observed) { o = in }))
	require.NoError(t, start(t, h))
	require.Equal(t, cell.StatusDegraded, o.health("preflight.kernel").Level)
	require.Equal(t, "old", o.health("preflight.kernel").Message)
}

func TestKernelPreflight(t *testing.T) {
	check := func(mode string, backend bpf.Backend) error {
		cfg := bpf.DefaultConfig
		cfg.BPF, cfg.BPFFS = mode, t.TempDir()+"/no\x00path" // nothing can be mounted there
		return kernelPreflight(kernelParams{Config: cfg, Backend: backend}).Preflight.Check(t.Context())
	}
	var warning tables.Warning
	require.NoError(t, check(bpf.ModeMemory, nil))
	require.NoError(t, check(bpf.ModeKernel, bpf.NewMemory()))
	require.ErrorAs(t, check(bpf.ModeAuto, nil), &warning)
	err := check(bpf.ModeKernel, nil)
	require.ErrorContains(t, err, "--bpf=kernel is not possible")
	require.False(t, errors.As(err, &warning))
}

func TestBanner(t *testing.T) {
	for _, format := range []string{formatText, formatJSON} {
		t.Run(format, func(t *testing.T) {
			var b strings.Builder
			h := New(bpf.Cell, api.ListenCell, api.Cell, Banner(&b))
			require.NoError(t, start(t, h,
				"--bpf=memory", "--api-listen=127.0.0.1:0", "--socket=", "--node-name=node-7", "--log-format="+format))
			if format == formatJSON {
				require.Empty(t, b.String())
				return
			}
			require.Contains(t, b.String(), "node-7")
			require.Contains(t, b.String(), "memory: no packet is touched")
			require.Contains(t, b.String(), "curl http://127.0.0.1:")
			require.NotContains(t, b.String(), "127.0.0.1:0/", "the port that was chosen")
		})
	}
}

// The kubelet's probes are answered while maps are opened and programs loaded.
func TestListensFirst(t *testing.T) {
	h := New(Cell)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse([]string{"--node-name=node-1", "--source=files"}))
	var b strings.Builder
	require.NoError(t, h.PrintObjects(&b, slog.New(slog.DiscardHandler)))
	_, hooks, found := strings.Cut(b.String(), "Start hooks:")
	require.True(t, found)
	hooks, _, _ = strings.Cut(hooks, "Stop hooks:")
	require.Contains(t, hooks, "api.(*Server).start")
	before, after, _ := strings.Cut(hooks, "api.(*Server).start")
	for _, slow := range []string{"bpf.provideMaps", "datapath.provide", "api.(*Server).begin"} {
		require.Contains(t, after, slow)
		require.NotContains(t, before, slow)
	}
}

// The whole agent starts on the embedded demo, gets ready, and leaves nothing
// running when it stops.
func TestWholeAgent(t *testing.T) {
	dir := t.TempDir()
	var server *api.Server
	h := New(Cell, cell.Invoke(func(s *api.Server) { server = s }))
	require.NoError(t, start(t, h, "--node-name=node-1", "--source=files", "--bpf=memory",
		"--api-listen=127.0.0.1:0", "--socket=", "--state-dir="+dir))
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var body []byte
	await.True(t, func() bool {
		resp, err := http.Get(server.URL() + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, _ = io.ReadAll(resp.Body)
		return resp.StatusCode == http.StatusOK
	}, "%s", &body)
}
