// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/bpfmap"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// reconcile has sluice_sources, where the pod is in class 2, follow the tables, in which
// it is in class 1. What waits is looked at again when something opens for it only.
func (w *world) reconcile() (sources statedb.Table[*tables.EgressSource]) {
	h := hive.NewWithOptions(hive.Options{ModulePrivateProviders: cell.ModulePrivateProviders{job.Registry.NewGroup}},
		job.Cell, cell.SimpleHealthCell, bpf.Cell, bpfmap.Cell,
		cell.Provide(func() *statedb.DB { return w.db }, func() bpf.Backend { return bpf.NewMemory() }),
		cell.Invoke(func(l cell.Lifecycle, maps *bpf.Maps) {
			l.Append(cell.Hook{OnStart: func(cell.HookContext) error {
				_, err := maps.Sources.Update([]bpf.SourceKey{{Addr: bpf.AddressFrom(pod)}}, []bpf.SourceValue{{Class: 2}})
				return err
			}})
		}),
		cell.Module("test", "Test",
			cell.ProvidePrivate(tables.NewEgressSourceTable, tables.NewSourceEntryTable),
			cell.Invoke(func(p bpfmap.Params, maps *bpf.Maps, desired statedb.RWTable[*tables.EgressSource], entries statedb.RWTable[*tables.SourceEntry]) error {
				w.params.Params, w.Maps, w.SourceEntries, sources = p, maps, entries, desired
				wtxn := w.db.WriteTxn(desired)
				_, _, err := desired.Insert(wtxn, &tables.EgressSource{Addr: pod, Class: 1, Reconciled: tables.Pending()})
				wtxn.Commit()
				require.NoError(w.t, err)
				return registerSources(*w.params, tables.NewDesired(desired), entries)
			})))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(w.t, flags.Parse([]string{"--retry-min=1h", "--retry-max=1h", "--audit-interval=0"}))
	log := hivetest.Logger(w.t, hivetest.LogLevel(slog.LevelWarn))
	require.NoError(w.t, h.Start(log, context.Background()))
	w.t.Cleanup(func() { require.NoError(w.t, h.Stop(log, context.Background())) })
	return sources
}

// await returns when the pod's entry is what a test waits for.
func (w *world) await(sources statedb.Table[*tables.EgressSource], is func(*tables.EgressSource) bool) {
	w.t.Helper()
	timeout := time.After(await.Bound)
	for {
		row, _, watch, found := sources.GetWatch(w.db.ReadTxn(), tables.EgressSourceByAddr(pod))
		require.True(w.t, found)
		if is(row) {
			return
		}
		select {
		case <-watch:
		case <-timeout:
			require.Fail(w.t, "not reached", "the entry is %v", row.TableRow())
		}
	}
}

// A circle that is closed where others wait is noticed by all in it.
func TestCircleIsClosedElsewhere(t *testing.T) {
	w := newWorld(t)
	w.class(1, held(3))
	w.class(2, held(1))
	w.class(3, held())
	sources := w.reconcile()
	w.await(sources, func(s *tables.EgressSource) bool { return strings.Contains(s.Status.GetError(), "egress/1") })
	w.class(3, held(2))
	w.await(sources, func(s *tables.EgressSource) bool { return s.Status.Kind == reconciler.StatusKindDone })
}
