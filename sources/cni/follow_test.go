// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/cnifile"
	"github.com/sluice-net/sluice/tables/dirwatch/dirwatchtest"
)

// Without inotify the files are read all the same, and the health says that they are
// polled.
func TestWithoutInotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := statedb.New()
		table, err := tables.NewCNIAttachmentTable(db)
		require.NoError(t, err)
		wtxn := db.WriteTxn(table)
		initialized := table.RegisterInitializer(wtxn, "test")
		wtxn.Commit()
		f := &follower{
			db: db, log: slog.New(slog.DiscardHandler), dir: filepath.Join(t.TempDir(), "cni"),
			table: table, initialized: initialized,
			watcher: dirwatchtest.Silent{Err: errors.New("too many open files")},
		}
		ctx, stop := context.WithCancel(t.Context())
		_, health := cell.NewSimpleHealth()
		ended := make(chan error, 1)
		go func() { ended <- f.run(ctx, health) }()
		defer func() {
			stop()
			require.NoError(t, <-ended)
		}()
		synctest.Wait()
		done, _ := table.Initialized(db.ReadTxn())
		require.True(t, done)
		health.Lock()
		status := *health
		health.Unlock()
		require.EqualValues(t, cell.StatusDegraded, status.Level)
		require.Contains(t, status.Status, "it is read each second")
		require.ErrorContains(t, status.Error, "too many open files")

		require.NoError(t, cnifile.Write(f.dir, &cnifile.Attachment{
			Container: "c1", IfName: "eth0", Namespace: "prod", Pod: "web", Device: "veth1", IfIndex: 7,
			Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		}))
		time.Sleep(time.Minute) // of the test's own time
		synctest.Wait()
		_, _, found := table.Get(db.ReadTxn(), tables.CNIAttachmentByFile("c1-eth0.json"))
		require.True(t, found)
		require.NoError(t, os.Remove(filepath.Join(f.dir, "c1-eth0.json")))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, table.NumObjects(db.ReadTxn()))
	})
}
