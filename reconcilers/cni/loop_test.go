// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/cnifile"
	"github.com/sluice-net/sluice/tables/dirwatch/dirwatchtest"
)

// testLoop is a keeper that runs, by the test's own time.
type testLoop struct {
	*keeper
	t       *testing.T
	holding chan struct{} // closed when the agent holds new pods
	locals  statedb.RWTable[*tables.LocalEndpoint]
	health  *cell.SimpleHealth
}

// loop runs a keeper of the node's installer while the test does.
func (n *testNode) loop(watch error, run runner, test func(*testLoop)) {
	synctest.Test(n.t.(*testing.T), func(t *testing.T) {
		db := statedb.New()
		table, err := tables.NewCNIConfigTable(db)
		require.NoError(t, err)
		l := &testLoop{t: t, holding: make(chan struct{})}
		l.locals, err = tables.NewLocalEndpointTable(db)
		require.NoError(t, err)
		_, l.health = cell.NewSimpleHealth()
		l.keeper = &keeper{
			installer: *n.installer, db: db, log: slog.New(slog.DiscardHandler), table: table,
			holding: l.awaitHolding, locals: l.locals, watcher: dirwatchtest.Silent{Err: watch},
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- run(l.keeper, ctx, l.health) }()
		synctest.Wait()
		test(l)
		stop()
		require.NoError(t, <-ended)
	})
}

type runner func(*keeper, context.Context, cell.Health) error

var run, runRemoved runner = (*keeper).run, (*keeper).runRemoved

func (l *testLoop) awaitHolding(ctx context.Context) bool {
	select {
	case <-l.holding:
		return true
	case <-ctx.Done():
		return false
	}
}

func (l *testLoop) row() *tables.CNIConfig {
	synctest.Wait()
	for row := range l.table.All(l.db.ReadTxn()) {
		return row
	}
	l.t.Fatal("there is no row")
	return nil
}

// status returns what the keeper last said of its health.
func (l *testLoop) status() cell.SimpleHealth {
	synctest.Wait()
	l.health.Lock()
	defer l.health.Unlock()
	return *l.health
}

// A node gets no plugin before the agent can answer it: an agent that never can stops no
// pods.
func TestFirstInstallWaits(t *testing.T) {
	n := newTestNode(t)
	n.has("10-pods.conflist", bridge)
	n.loop(nil, run, func(l *testLoop) {
		time.Sleep(time.Hour) // of the test's own time
		require.Equal(t, tables.CNIPending, l.row().State)
		require.Equal(t, []string{"bridge", "portmap"}, types(n.loads()))
		require.NoFileExists(t, n.Binary())

		close(l.holding)
		require.Equal(t, tables.CNIInstalled, l.row().State)
		require.Equal(t, []string{"bridge", "portmap", "sluice-cni"}, types(n.loads()))
	})
	// The next agent finds it, and keeps it up to date before it is ready.
	n.has("10-pods.conflist", single2)
	n.loop(nil, run, func(l *testLoop) {
		require.Equal(t, tables.CNIInstalled, l.row().State)
		require.Equal(t, []string{"calico", "sluice-cni"}, types(n.loads()))
	})
}

// Where inotify is used up the directory is polled.
func TestKeeperWithoutInotify(t *testing.T) {
	n := newTestNode(t)
	n.loop(errors.New("too many open files"), run, func(l *testLoop) {
		close(l.holding)
		require.Equal(t, tables.CNIWaiting, l.row().State)
		require.EqualValues(t, cell.StatusDegraded, l.status().Level)
		require.ErrorContains(t, l.status().Error, "too many open files")
		n.has("10-pods.conflist", bridge)
		time.Sleep(time.Minute)
		require.Equal(t, tables.CNIInstalled, l.row().State)
		require.EqualValues(t, cell.StatusDegraded, l.status().Level)
		require.Contains(t, l.status().Status, "they are read each second")
		require.Equal(t, []string{"bridge", "portmap", "sluice-cni"}, types(n.loads()))
	})
}

// A node that has pods and no configuration has it elsewhere.
func TestWrongDirectory(t *testing.T) {
	n := newTestNode(t)
	n.loop(nil, run, func(l *testLoop) {
		close(l.holding)
		require.Equal(t, tables.CNIWaiting, l.row().State)
		require.EqualValues(t, cell.StatusOK, l.status().Level, "the CNI may be about to write it")

		wtxn := l.db.WriteTxn(l.locals)
		_, _, err := l.locals.Insert(wtxn, &tables.LocalEndpoint{Addr: netip.MustParseAddr("10.0.0.1")})
		require.NoError(t, err)
		wtxn.Commit()
		require.Contains(t, l.row().Error, "--cni-conf-dir")
		require.Equal(t, tables.CNIWaiting, l.row().State)
		require.EqualValues(t, cell.StatusDegraded, l.status().Level)
		require.ErrorContains(t, l.status().Error, n.ConfDir+" has no CNI configuration")

		n.has("10-pods.conflist", bridge)
		time.Sleep(time.Minute)
		require.Equal(t, tables.CNIInstalled, l.row().State)
		require.Empty(t, l.row().Error)
		require.EqualValues(t, cell.StatusOK, l.status().Level)
	})
}

// refuses refuses to remove files, as a read-only file system does.
type refuses struct {
	realDisk
	err  error
	over atomic.Bool
}

func (r *refuses) remove(path string) error {
	if !r.over.Load() {
		return &os.PathError{Op: "remove", Path: path, Err: r.err}
	}
	return r.realDisk.remove(path)
}

// What cannot be removed is tried again, and named as long as it is there. What it told of
// pods goes too: their end is not told.
func TestRemovalIsTriedAgain(t *testing.T) {
	for _, refusal := range []error{unix.EPERM, unix.EROFS, unix.EBUSY} {
		t.Run(refusal.Error(), func(t *testing.T) {
			n := newTestNode(t)
			n.has("10-pods.conflist", bridge)
			n.install()
			require.NoError(t, cnifile.Write(n.run, &cnifile.Attachment{
				Container: "c1", IfName: "eth0", Namespace: "prod", Pod: "web", Reason: "none",
				Addrs: addrs("10.0.0.1"), Runtime: "containerd",
			}))
			disk := &refuses{err: refusal}
			n.disk = disk
			n.loop(nil, runRemoved, func(l *testLoop) {
				require.Equal(t, tables.CNIBroken, l.row().State)
				require.Contains(t, l.row().Error, refusal.Error()+"; still there: "+n.file()+", "+n.Binary())
				require.EqualValues(t, cell.StatusDegraded, l.status().Level)
				require.FileExists(t, filepath.Join(n.run, "c1-eth0.json"))

				disk.over.Store(true)
				time.Sleep(time.Minute)
				require.Equal(t, tables.CNIRemoved, l.row().State)
				require.EqualValues(t, cell.StatusOK, l.status().Level)
				require.NoFileExists(t, n.file())
				require.NoFileExists(t, n.Binary())
				require.NoDirExists(t, n.run)
			})
		})
	}
	// Where there is nothing, nothing is refused.
	n := newTestNode(t)
	n.disk = &refuses{err: unix.EROFS}
	n.loop(nil, runRemoved, func(l *testLoop) { require.Equal(t, tables.CNIRemoved, l.row().State) })
}
