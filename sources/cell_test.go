// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/sources/kubernetes"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// observed are the tables as the rest of the agent gets them.
type observed struct {
	cell.In

	DB              *statedb.DB
	Nodes           statedb.Table[*tables.Node]
	Namespaces      statedb.Table[*tables.Namespace]
	Endpoints       statedb.Table[*tables.Endpoint]
	Services        statedb.Table[*tables.Service]
	BackendSlices   statedb.Table[*tables.BackendSlice]
	EgressPolicies  statedb.Table[*tables.EgressPolicy]
	NetworkPolicies statedb.Table[*tables.NetworkPolicy]
	CIDRGroups      statedb.Table[*tables.CIDRGroup]
	Identities      statedb.Table[*tables.Identity]
	CiliumEndpoints statedb.Table[*tables.CiliumEndpoint]
	CiliumNodes     statedb.Table[*tables.CiliumNode]
	ObjectSources   statedb.Table[*tables.ObjectSource]
}

func newHive(sources cell.Cell, more ...cell.Cell) *hive.Hive {
	return hive.NewWithOptions(hive.Options{
		ModulePrivateProviders: cell.ModulePrivateProviders{
			func(r job.Registry, h cell.Health, id cell.FullModuleID, log *slog.Logger) job.Group {
				return r.NewGroup(h.NewScope(id.String()), job.WithLogger(log))
			},
		},
	}, append([]cell.Cell{statedb.Cell, job.Cell, cell.SimpleHealthCell, cell.Provide(derive.NewMetrics, func() tables.LocalNode { return tables.LocalNode{Name: "node-1"} }), sources}, more...)...)
}

// start starts a hive with flags, and returns its tables. All of them become
// initialized unless something is missing.
func start(t *testing.T, sources cell.Cell, args ...string) (observed, map[string]script.Cmd) {
	t.Helper()
	var o observed
	h := newHive(sources, cell.Invoke(func(in observed) { o = in }))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse(args))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	cmds, err := h.ScriptCommands(log)
	require.NoError(t, err)
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	return o, cmds
}

func (o observed) awaitInitialized(t *testing.T) {
	t.Helper()
	txn := o.DB.ReadTxn()
	for _, table := range o.DB.GetTables(txn) {
		_, initialized := table.Initialized(txn)
		select {
		case <-initialized:
		case <-time.After(await.Bound):
			require.Fail(t, "not initialized", table.Name())
		}
	}
}

func TestDemoIsTheDefault(t *testing.T) {
	o, _ := start(t, Cell)
	o.awaitInitialized(t)
	txn := o.DB.ReadTxn()
	require.Equal(t, 5, o.Endpoints.NumObjects(txn))
	require.Equal(t, 3, o.EgressPolicies.NumObjects(txn))
	require.Equal(t, 1, o.NetworkPolicies.NumObjects(txn))
}

func TestFakeCell(t *testing.T) {
	o, cmds := start(t, FakeCell)
	state, err := script.NewState(t.Context(), t.TempDir(), nil)
	require.NoError(t, err)
	engine := &script.Engine{Cmds: cmds}
	require.NoError(t, engine.ExecuteLine(state, "k8s/sync", t.Output()))
	o.awaitInitialized(t)
	require.Zero(t, o.Identities.NumObjects(o.DB.ReadTxn()))
	for _, line := range []string{"k8s/sync nosuch", "k8s/apply nosuch.yaml", "k8s/apply", "k8s/break", "k8s/absent a b"} {
		require.Error(t, engine.ExecuteLine(state, line, t.Output()), line)
	}
}

func TestCiliumEndpoints(t *testing.T) {
	api := kubernetes.NewFakeAPI()
	require.NoError(t, api.Sync())
	require.NoError(t, api.Apply([]byte(`
{apiVersion: v1, kind: Pod, metadata: {name: not-read}}
---
{apiVersion: cilium.io/v2, kind: CiliumIdentity, metadata: {name: "7"}, security-labels: {"k8s:app": web, "k8s:io.kubernetes.pod.namespace": shop}}
---
{apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: web, namespace: shop}, status: {identity: {id: 7}, networking: {node: 192.0.2.1, addressing: [{ipv4: 10.0.0.1}]}}}
`)))
	o, _ := start(t, cell.Group(FakeCell, cell.Provide(func() *kubernetes.FakeAPI { return api })), "--endpoint-source=cilium")
	o.awaitInitialized(t)
	var endpoints []*tables.Endpoint
	await.True(t, func() bool {
		endpoints = statedb.Collect(o.Endpoints.All(o.DB.ReadTxn()))
		return len(endpoints) == 1 && endpoints[0].LabelSet.Labels.String() == "app=web"
	}, "%v", &endpoints)
	require.Zero(t, o.ObjectSources.NumObjects(o.DB.ReadTxn())-13) // one for each kind, none for pods
}

func TestBadConfig(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c,
		clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c}}]}`), 0o600))
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--source=etcd"}, `flag --source: unknown value "etcd", valid are: kubernetes, files`},
		{[]string{"--endpoint-source=pods"}, `flag --endpoint-source: unknown value "pods", valid are: kubernetes, cilium`},
		{[]string{"--manifests=/nosuch/dir"}, "/nosuch/dir"},
		{[]string{"--source=kubernetes"}, "find API server without --kubeconfig"},
		{[]string{"--source=kubernetes", "--kubeconfig=/nosuch/config"}, "read kubeconfig /nosuch/config"},
		{[]string{"--source=kubernetes", "--manifests=/tmp", "--kubeconfig=" + kubeconfig}, "flag --manifests needs --source=files"},
		{[]string{"--kubeconfig=/nosuch/config"}, "flag --kubeconfig needs --source=kubernetes"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			h := newHive(Cell, cell.Invoke(func(observed) {}))
			flags := pflag.NewFlagSet("", pflag.ContinueOnError)
			h.RegisterFlags(flags)
			require.NoError(t, flags.Parse(test.args))
			log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError+1))
			err := h.Start(log, t.Context())
			_ = h.Stop(log, context.Background()) // what did start
			require.ErrorContains(t, err, test.want)
		})
	}
}

// No other module can write a table of objects.
func TestTablesArePrivate(t *testing.T) {
	h := newHive(Cell, cell.Module("other", "Other", cell.Invoke(func(statedb.RWTable[*tables.Endpoint]) {})))
	require.ErrorContains(t, h.Populate(hivetest.Logger(t, hivetest.LogLevel(slog.LevelError+1))), "RWTable")
}
