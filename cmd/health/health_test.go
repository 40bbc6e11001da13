// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	*Reporter
	db    *statedb.DB
	table statedb.RWTable[*tables.Health]
}

func newFixture(t testing.TB) fixture {
	db := statedb.New()
	table, err := tables.NewHealthTable(db)
	require.NoError(t, err)
	return fixture{NewReporter(db, table), db, table}
}

func (f fixture) get(id string) *tables.Health {
	row, _, _ := f.table.Get(f.db.ReadTxn(), tables.HealthByID(id))
	return row
}

func (f fixture) ids() []string {
	return statedb.Collect(statedb.Map(f.table.All(f.db.ReadTxn()), func(h *tables.Health) string { return h.ID }))
}

func (f fixture) revision() statedb.Revision { return f.table.Revision(f.db.ReadTxn()) }

func TestReport(t *testing.T) {
	f := newFixture(t)
	h := f.Scope("sources").NewScope("pods")
	require.Empty(t, f.ids(), "a scope that reported nothing has no row")

	h.OK("synced")
	row := f.get("sources.pods")
	require.Equal(t, cell.StatusOK, row.Level)
	require.Equal(t, "synced", row.Message)
	require.Equal(t, 1, row.Count)
	since := row.Since

	h.Degraded("list", errors.New("refused"))
	h.Degraded("list", errors.New("refused again"))
	row = f.get("sources.pods")
	require.Equal(t, cell.StatusDegraded, row.Level)
	require.Equal(t, "refused again", row.Error)
	require.Equal(t, 2, row.Count)
	require.False(t, row.Since.Before(since))

	h.OK("synced")
	require.Equal(t, cell.StatusOK, f.get("sources.pods").Level)
	require.Empty(t, f.get("sources.pods").Error)

	h.Stopped("done")
	require.Equal(t, cell.StatusStopped, f.get("sources.pods").Level)
}

func TestRepeatedReportWritesNothing(t *testing.T) {
	f := newFixture(t)
	ok, bad := f.Scope("ok"), f.Scope("bad")
	ok.OK("fine")
	bad.Degraded("broken", errors.New("cause"))
	before := f.revision()

	// A transaction would wait for this one forever.
	wtxn := f.db.WriteTxn(f.table)
	for range 100 {
		ok.OK("fine")
		bad.Degraded("broken", errors.New("cause"))
	}
	wtxn.Abort()
	require.Equal(t, before, f.revision())

	bad.Degraded("broken", errors.New("other"))
	require.Equal(t, 102, f.get("bad").Count)
}

// Who says how many rows there are now does not wait for the table of health.
func TestNewMessageWritesNothingYet(t *testing.T) {
	f := newFixture(t)
	h := f.Scope("loop")
	h.OK("1 row")
	wtxn := f.db.WriteTxn(f.table)
	h.OK("2 rows")
	wtxn.Abort()
	require.Equal(t, "1 row", f.get("loop").Message)
	await.True(t, func() bool { return f.get("loop").Message == "2 rows" })
}

func TestChangingMessagesSettle(t *testing.T) {
	f := newFixture(t)
	h := f.Scope("loop")
	for i := range 1000 {
		h.OK(strings.Repeat("x", i))
	}
	require.Less(t, f.revision(), statedb.Revision(100), "not a row for each message")
	last := strings.Repeat("x", 999)
	await.True(t, func() bool { return f.get("loop").Message == last })
	require.Equal(t, 1000, f.get("loop").Count)
}

func TestClose(t *testing.T) {
	f := newFixture(t)
	module := f.Scope("files")
	file := module.NewScope("a")
	file.Degraded("parse", errors.New("bad"))
	file.NewScope("document").Degraded("field", errors.New("bad"))
	other := module.NewScope("ab")
	other.OK("fine")
	require.Equal(t, []string{"files.a", "files.a.document", "files.ab"}, f.ids())

	file.Close()
	require.Equal(t, []string{"files.ab"}, f.ids(), "with the scopes in it, not with its neighbours")
	file.OK("too late")
	require.Equal(t, []string{"files.ab"}, f.ids())

	again := module.NewScope("a")
	again.OK("fine")
	require.Equal(t, "fine", f.get("files.a").Message)
	file.Close()
	require.NotNil(t, f.get("files.a"), "closing the former scope leaves the new one alone")
}

func newHive(cells ...cell.Cell) *hive.Hive {
	return hive.NewWithOptions(hive.Options{
		StartTimeout: time.Minute,
		StopTimeout:  time.Minute,
		ModulePrivateProviders: cell.ModulePrivateProviders{
			ForModule,
			func(r job.Registry, h cell.Health, log *slog.Logger) job.Group {
				return r.NewGroup(h, job.WithLogger(log))
			},
		},
	}, append(cells, statedb.Cell, job.Cell, Cell)...)
}

// hive closes the scope of a one-shot job that failed; it must not vanish.
func TestFailedJobStays(t *testing.T) {
	var db *statedb.DB
	var table statedb.Table[*tables.Health]
	release := make(chan struct{})
	h := newHive(
		cell.Module("outer", "Outer module", cell.Module("inner", "Inner module",
			cell.Invoke(func(jobs job.Group) {
				jobs.Add(
					job.OneShot("fails", func(context.Context, cell.Health) error { return errors.New("no such thing") }),
					job.OneShot("ends", func(context.Context, cell.Health) error { return nil }),
					job.OneShot("runs", func(ctx context.Context, h cell.Health) error {
						h.OK("busy")
						select {
						case <-ctx.Done():
						case <-release:
						}
						return nil
					}),
				)
			}),
		)),
		cell.Invoke(func(d *statedb.DB, tbl statedb.Table[*tables.Health]) { db, table = d, tbl }),
	)
	log := hivetest.Logger(t)
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })

	await.True(t, func() bool {
		row, _, ok := table.Get(db.ReadTxn(), tables.HealthByID("outer.inner.job-fails"))
		_, _, ends := table.Get(db.ReadTxn(), tables.HealthByID("outer.inner.job-ends"))
		runs, _, running := table.Get(db.ReadTxn(), tables.HealthByID("outer.inner.job-runs"))
		return ok && row.Ended && !ends && running && runs.Message == "busy"
	})
	row, _, _ := table.Get(db.ReadTxn(), tables.HealthByID("outer.inner.job-fails"))
	require.Equal(t, cell.StatusDegraded, row.Level)
	require.Equal(t, "no such thing", row.Error)
	close(release)
}

func TestCommand(t *testing.T) {
	f := newFixture(t)
	f.Scope("b").Degraded("broken", errors.New("cause"))
	f.Scope("a").OK("fine")
	engine := &script.Engine{Cmds: map[string]script.Cmd{"health": command(f.db, f.table)}}
	run := func(line string) (string, error) {
		s, err := script.NewState(t.Context(), t.TempDir(), nil)
		require.NoError(t, err)
		var out strings.Builder
		err = engine.ExecuteLine(s, line, &out)
		return out.String(), err
	}

	out, err := run("health")
	require.NoError(t, err)
	require.Contains(t, out, "a: level=OK message=fine error=\nb: level=Degraded message=broken error=cause\n")

	out, err = run("health 'b: level=Degraded'")
	require.NoError(t, err)
	require.Contains(t, out, "b: level=Degraded message=broken error=cause\n")
	require.NotContains(t, out, "a: level")
	_, err = run("health --timeout=1ms 'b: level=OK'")
	require.ErrorContains(t, err, "no match")
	_, err = run("health '('")
	require.ErrorContains(t, err, "parse pattern")

	time.AfterFunc(10*time.Millisecond, func() { f.Scope("b").OK("recovered") })
	_, err = run("health 'b: level=OK'")
	require.NoError(t, err, "it waits for the match")
}

func BenchmarkReportUnchanged(b *testing.B) {
	h := newFixture(b).Scope("loop")
	for b.Loop() {
		h.OK("fine")
	}
}
