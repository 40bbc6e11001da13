// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// edit has another program write the agent's file again.
func (n *testNode) edit(change func(plugins []any) []any) {
	var list map[string]any
	data, err := os.ReadFile(n.file())
	require.NoError(n.t, err)
	require.NoError(n.t, json.Unmarshal(data, &list))
	list["plugins"] = change(list["plugins"].([]any))
	data, err = json.Marshal(list)
	require.NoError(n.t, err)
	require.NoError(n.t, os.WriteFile(n.file(), data, 0o644))
}

func plugin(name string) any { return map[string]any{"type": name, "x-own": name} }

// What others chain to the agent's configuration stays there, as Istio does, which takes
// the first file and appends itself.
func TestPluginsOfOthers(t *testing.T) {
	n := newTestNode(t)
	n.has("10-pods.conflist", bridge)
	require.Empty(t, n.install().Others)
	n.edit(func(plugins []any) []any { return append(plugins, plugin("istio-cni")) })
	for range 2 {
		row := n.install()
		require.Equal(t, []string{"istio-cni"}, row.Others)
		require.Equal(t, tables.CNIInstalled, row.State)
		require.Equal(t, []string{"bridge", "portmap", "sluice-cni", "istio-cni"}, types(n.loads()))
		last := string(n.loads().Plugins[3].Bytes)
		require.JSONEq(t, `{"type": "istio-cni", "x-own": "istio-cni"}`, last)
	}

	// The CNI's own file changes, and another plugin comes before the agent's.
	n.edit(func(plugins []any) []any { return slices.Insert(plugins, 2, plugin("tuning")) })
	n.has("10-pods.conflist", single2)
	require.Equal(t, []string{"tuning", "istio-cni"}, n.install().Others)
	require.Equal(t, []string{"calico", "tuning", "sluice-cni", "istio-cni"}, types(n.loads()))

	// One chains itself to the CNI's own file, and is called once.
	n.has("10-pods.conflist", `{"cniVersion": "1.0.0", "name": "pods",
		"plugins": [{"type": "calico"}, {"type": "istio-cni"}]}`)
	require.Equal(t, []string{"tuning"}, n.install().Others)
	require.Equal(t, []string{"calico", "istio-cni", "tuning", "sluice-cni"}, types(n.loads()))

	// What others remove, and what is no plugin, goes.
	n.edit(func(plugins []any) []any {
		return append(slices.Delete(plugins, 2, 3), map[string]any{"x": "no type"}, "no plugin")
	})
	require.Empty(t, n.install().Others)
	require.Equal(t, []string{"calico", "istio-cni", "sluice-cni"}, types(n.loads()))

	// A file that does not say what it was made from, and others that are no configuration.
	n.edit(func(plugins []any) []any {
		delete(plugins[2].(map[string]any), "madeFrom")
		return slices.Insert(append(plugins, plugin("last")), 0, plugin("bridge"))
	})
	require.Equal(t, []string{"last"}, n.install().Others)
	for _, text := range []string{"", "[]", `{"plugins": [{"type": "other"}]}`} {
		n.has(FileName, text)
		require.Empty(t, n.install().Others)
		require.Equal(t, []string{"calico", "istio-cni", "sluice-cni"}, types(n.loads()))
	}
}

// reads counts the files that are read.
type reads struct {
	realDisk
	paths map[string]int
}

func (r *reads) read(path string) ([]byte, error) {
	r.paths[path]++
	return r.realDisk.read(path)
}

// The binary is large: it is read when it may have changed.
func TestBinaryIsReadOnce(t *testing.T) {
	n := newTestNode(t)
	n.has("10-pods.conflist", bridge)
	disk := &reads{paths: map[string]int{}}
	n.disk = disk
	for range 3 {
		require.Equal(t, tables.CNIInstalled, n.install().State)
	}
	require.Equal(t, 1, disk.paths[n.source])
	require.Equal(t, 1, disk.paths[n.Binary()])

	for _, spoil := range []func() error{
		func() error { return os.WriteFile(n.Binary(), []byte("of others"), 0o755) },
		func() error { return os.Chmod(n.Binary(), 0o600) },
		func() error { return os.Remove(n.Binary()) },
		func() error { return os.WriteFile(n.source, []byte("another version"), 0o755) },
	} {
		require.NoError(t, spoil())
		n.install()
		n.loads() // checks the binary
	}
	binary, err := os.ReadFile(n.Binary())
	require.NoError(t, err)
	require.Equal(t, "another version", string(binary))
}

// An agent that keeps its maps in memory leaves the plugin of another one alone, and
// installs none.
func TestMemoryTouchesNothing(t *testing.T) {
	for _, enabled := range []bool{false, true} {
		n := newTestNode(t)
		n.has("10-pods.conflist", bridge)
		n.install()
		before, err := os.ReadFile(n.file())
		require.NoError(t, err)
		require.Empty(t, n.runInMemory(enabled))
		after, err := os.ReadFile(n.file())
		require.NoError(t, err)
		require.Equal(t, string(before), string(after))
		require.FileExists(t, n.Binary())
	}
}

// runInMemory starts and stops an agent with maps in memory, and returns what it did of the
// node's configuration.
func (n *testNode) runInMemory(plugin bool) (rows []*tables.CNIConfig) {
	t := n.t
	var db *statedb.DB
	var table statedb.Table[*tables.CNIConfig]
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, bpf.Cell, Cell,
		cell.Provide(func(r job.Registry, h cell.Health) job.Group { return r.NewGroup(h) }),
		cell.Provide(tables.NewSlotTable, statedb.RWTable[*tables.Slot].ToTable),
		cell.Provide(tables.NewAttachmentTable, statedb.RWTable[*tables.Attachment].ToTable),
		cell.Provide(tables.NewConfigMirrorTable, statedb.RWTable[*tables.ConfigMirror].ToTable),
		cell.Provide(tables.NewNetworkPolicyTable, statedb.RWTable[*tables.NetworkPolicy].ToTable),
		cell.Provide(func() tables.Enforcement { return tables.EnforcementDefault }),
		cell.Provide(tables.NewLocalEndpointTable, statedb.RWTable[*tables.LocalEndpoint].ToTable),
		cell.Provide(func() Socket { return Socket(n.plugin.Socket) }),
		cell.Provide(func() tables.CNIPlugin {
			return tables.CNIPlugin{Enabled: plugin, RunDir: n.run}
		}),
		cell.Invoke(func(d *statedb.DB, t statedb.Table[*tables.CNIConfig]) { db, table = d, t }))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	args := []string{"--bpf=memory", "--cni-conf-dir=" + n.ConfDir, "--cni-bin-dir=" + n.BinDir}
	require.NoError(t, flags.Parse(args))
	require.NoError(t, h.Start(log, t.Context()))
	require.NoError(t, h.Stop(log, context.Background())) // by then the job has ended
	return statedb.Collect(table.All(db.ReadTxn()))
}
