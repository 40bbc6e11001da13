// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/dirwatch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func addrs(text string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(text)} }

// follow runs the keeper, and returns what waits for its row to be in a state.
func (n *testNode) follow(
	run func(*keeper) func(context.Context, cell.Health) error,
) func(state, network string) {
	var db *statedb.DB
	var table statedb.RWTable[*tables.CNIConfig]
	log := hivetest.Logger(n.t, hivetest.LogLevel(slog.LevelError))
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, jobCell,
		cell.Provide(tables.NewCNIConfigTable, tables.NewLocalEndpointTable),
		cell.Invoke(func(d *statedb.DB, c statedb.RWTable[*tables.CNIConfig],
			l statedb.RWTable[*tables.LocalEndpoint], g jobGroup) {
			db, table = d, c
			g.add(run(&keeper{
				installer: *n.installer, db: d, log: log, table: c, locals: l,
				holding: func(context.Context) bool { return true }, watcher: dirwatch.New(),
			}))
		}))
	require.NoError(n.t, h.Start(log, n.t.Context()))
	n.t.Cleanup(func() { require.NoError(n.t, h.Stop(log, context.Background())) })
	return func(state, network string) {
		require.Eventually(n.t, func() bool {
			for row := range table.All(db.ReadTxn()) {
				return row.State == state && row.Network == network
			}
			return false
		}, time.Minute, time.Millisecond, "%s %s", state, network)
	}
}

type jobGroup struct{ job.Group }

func (g jobGroup) add(f func(context.Context, cell.Health) error) { g.Add(job.OneShot("keep", f)) }

var jobCell = cell.Provide(func(r job.Registry, h cell.Health) jobGroup { return jobGroup{r.NewGroup(h)} })

// The configuration is made when the CNI writes its own, and again when that changes.
func TestKeeper(t *testing.T) {
	n := newTestNode(t)
	is := n.follow(func(k *keeper) func(context.Context, cell.Health) error { return k.run })
	is(tables.CNIWaiting, "")
	n.has("10-pods.conflist", bridge)
	is(tables.CNIInstalled, "pods")
	n.loads()
	n.has("10-pods.conflist", `{"cniVersion"`)
	is(tables.CNIBroken, "")
	n.loads()
	n.has("05-other.conf", single)
	is(tables.CNIInstalled, "one")
	require.NoError(t, os.Remove(n.file())) // by another program
	require.Eventually(t, func() bool { _, err := os.Stat(n.file()); return err == nil }, time.Minute,
		time.Millisecond)
	require.NoError(t, os.Remove(filepath.Join(n.ConfDir, "05-other.conf")))
	is(tables.CNIBroken, "")
	require.NoError(t, os.Remove(filepath.Join(n.ConfDir, "10-pods.conflist")))
	is(tables.CNIWaiting, "")
	require.NoFileExists(t, n.file())
}

// A directory that comes later is followed.
func TestKeeperWithoutDirectory(t *testing.T) {
	n := newTestNode(t)
	require.NoError(t, os.Remove(n.ConfDir))
	is := n.follow(func(k *keeper) func(context.Context, cell.Health) error { return k.run })
	is(tables.CNIWaiting, "")
	require.NoError(t, os.Mkdir(n.ConfDir, 0o755))
	n.has("10-pods.conflist", bridge)
	is(tables.CNIInstalled, "pods")
}

// An agent without the plugin removes it.
func TestKeeperRemoves(t *testing.T) {
	n := newTestNode(t)
	n.has("10-pods.conflist", bridge)
	n.install()
	n.follow(func(k *keeper) func(context.Context, cell.Health) error { return k.runRemoved })(tables.CNIRemoved, "")
	require.Equal(t, []string{"bridge", "portmap"}, types(n.loads()))
	require.NoFileExists(t, n.Binary())
}
