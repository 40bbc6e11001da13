// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"log/slog"
	"os"
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
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const timeout = await.Bound

// views are what other modules see of the tables.
type views struct {
	cell.In

	DB            *statedb.DB
	Devices       statedb.Table[*tables.Device]
	Addresses     statedb.Table[*tables.NodeAddress]
	Routes        statedb.Table[*tables.Route]
	Neighbours    statedb.Table[*tables.Neighbour]
	BridgeEntries statedb.Table[*tables.BridgeEntry]
	Health        *cell.SimpleHealth
}

// health is that of the job, nothing before it starts.
func (v *views) health() (level cell.Level, err error) {
	h := v.Health.GetChild("netlink.job-reflect-netlink")
	if h == nil {
		return "", nil
	}
	h.Lock()
	defer h.Unlock()
	return h.Level, h.Error
}

func (v *views) healthy() bool {
	level, _ := v.health()
	return level == cell.StatusOK
}

func (v *views) state() State {
	txn := v.DB.ReadTxn()
	return State{
		Devices:       statedb.Collect(v.Devices.All(txn)),
		Addresses:     statedb.Collect(v.Addresses.All(txn)),
		Routes:        statedb.Collect(v.Routes.All(txn)),
		Neighbours:    statedb.Collect(v.Neighbours.All(txn)),
		BridgeEntries: statedb.Collect(v.BridgeEntries.All(txn)),
	}
}

// await waits until the tables are as a condition wants them.
func (v *views) await(t testing.TB, what string, ok func(State) bool) {
	t.Helper()
	deadline := time.After(timeout)
	for {
		txn := v.DB.ReadTxn()
		_, d := v.Devices.AllWatch(txn)
		_, a := v.Addresses.AllWatch(txn)
		_, r := v.Routes.AllWatch(txn)
		_, n := v.Neighbours.AllWatch(txn)
		_, b := v.BridgeEntries.AllWatch(txn)
		if ok(v.state()) {
			return
		}
		select {
		case <-d:
		case <-a:
		case <-r:
		case <-n:
		case <-b:
		case <-time.After(100 * time.Millisecond): // the condition may depend on more than tables
		case <-deadline:
			require.FailNow(t, "timeout", "%s: %s", what, dump(v.state()))
		}
	}
}

func (v *views) initialized() bool {
	txn := v.DB.ReadTxn()
	for _, table := range []statedb.TableMeta{v.Devices, v.Addresses, v.Routes, v.Neighbours, v.BridgeEntries} {
		if done, _ := table.Initialized(txn); !done {
			return false
		}
	}
	return true
}

func (v *views) revisions() (revisions []statedb.Revision) {
	txn := v.DB.ReadTxn()
	for _, table := range []statedb.TableMeta{v.Devices, v.Addresses, v.Routes, v.Neighbours, v.BridgeEntries} {
		revisions = append(revisions, table.Revision(txn))
	}
	return revisions
}

// newHive puts a netlink cell in the surroundings that it has in the agent.
func newHive(cells ...cell.Cell) *hive.Hive {
	opts := hive.DefaultOptions()
	opts.ModulePrivateProviders = cell.ModulePrivateProviders{
		func(r job.Registry, h cell.Health, id cell.ModuleID, log *slog.Logger) job.Group {
			return r.NewGroup(h.NewScope(string(id)), job.WithLogger(log))
		},
	}
	return hive.NewWithOptions(opts, append(cells, statedb.Cell, job.Cell, cell.SimpleHealthCell)...)
}

// start runs a netlink cell until the test ends.
func start(t testing.TB, cells ...cell.Cell) *views {
	t.Helper()
	var v views
	h := newHive(append(cells, cell.Invoke(func(all views) { v = all }))...)
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
	require.NoError(t, h.Start(log, context.Background()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	return &v
}

// requireRoot skips a test that changes the kernel's networking, or fails it
// where that must not be skipped.
func requireRoot(t testing.TB) {
	const reason = "needs root to make network namespaces"
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("SLUICE_REQUIRE_PRIVILEGED") != "":
		t.Fatal(reason)
	default:
		t.Skip(reason)
	}
}
