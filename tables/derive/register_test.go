// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// start runs the rules that a function registers.
func start(t *testing.T, register func(p Params) error) {
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, cell.Module("test", "Test",
		cell.Provide(job.Registry.NewGroup, NewMetrics),
		cell.Invoke(register)))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
}

// totals creates tables of groups.
func totals(db *statedb.DB, name string) statedb.RWTable[*total] {
	return statedb.MustNewTable(db, name, totalGroup)
}

// copies is a rule that has a table be what others are, all in all.
func copies(
	to statedb.RWTable[*total], inputs []Input[string], from ...statedb.Table[*total],
) Rule[string] {
	equal := func(a, b *total) bool { return *a == *b }
	return Rule[string]{
		Outputs: []statedb.TableMeta{to},
		Inputs:  inputs,
		Compute: Each(to, totalGroup.Query, equal, func(in statedb.ReadTxn, group string) *total {
			row := &total{Group: group}
			for _, table := range from {
				if one, _, found := table.Get(in, totalGroup.Query(group)); found {
					row.N += one.N
				}
			}
			if row.N == 0 {
				return nil
			}
			return row
		}),
	}
}

func markGroup(_ statedb.ReadTxn, row *total, mark func(string)) { mark(row.Group) }

func insert(t *testing.T, db *statedb.DB, table statedb.RWTable[*total], row *total) {
	wtxn := db.WriteTxn(table)
	defer wtxn.Abort()
	_, _, err := table.Insert(wtxn, row)
	require.NoError(t, err)
	wtxn.Commit()
}

// An output is initialized when the inputs are, with its rows in it; before, nothing is
// derived.
func TestAwaitsInputs(t *testing.T) {
	var (
		db          *statedb.DB
		from, after statedb.RWTable[*total]
		to          statedb.RWTable[*total]
		complete    []func(statedb.WriteTxn)
	)
	start(t, func(p Params) error {
		db = p.DB
		from, after, to = totals(db, "from"), totals(db, "after"), totals(db, "to")
		wtxn := db.WriteTxn(from, after)
		complete = append(complete,
			from.RegisterInitializer(wtxn, "test"), after.RegisterInitializer(wtxn, "test"))
		wtxn.Commit()
		rule := copies(to, []Input[string]{From(from, markGroup)}, from)
		rule.After = []statedb.TableMeta{after}
		return Register(p, rule)
	})
	insert(t, db, from, &total{"a", 1})
	for _, done := range complete {
		initialized, _ := to.Initialized(db.ReadTxn())
		require.False(t, initialized)
		require.Equal(t, []string{"to"}, to.PendingInitializers(db.ReadTxn()))
		require.Never(t, func() bool { return to.NumObjects(db.ReadTxn()) > 0 },
			20*time.Millisecond, 5*time.Millisecond)
		wtxn := db.WriteTxn(from, after)
		from.Insert(wtxn, &total{"b", 1})
		done(wtxn)
		wtxn.Commit()
	}
	_, watch := to.Initialized(db.ReadTxn())
	<-watch
	require.Equal(t, 2, to.NumObjects(db.ReadTxn()), "initialized means complete")
}

// Two rules that follow from one another both start, if one says so.
func TestFeedback(t *testing.T) {
	var db *statedb.DB
	var from, there, back statedb.RWTable[*total]
	start(t, func(p Params) error {
		db = p.DB
		from, there, back = totals(db, "from"), totals(db, "there"), totals(db, "back")
		if err := Register(p, copies(there, []Input[string]{
			From(from, markGroup), Feedback(From(back, markGroup)),
		}, from)); err != nil {
			return err
		}
		return Register(p, copies(back, []Input[string]{From(there, markGroup)}, there))
	})
	_, watch := back.Initialized(db.ReadTxn())
	<-watch
	insert(t, db, from, &total{"a", 3})
	for {
		row, _, changed, found := back.GetWatch(db.ReadTxn(), totalGroup.Query("a"))
		if found {
			require.Equal(t, &total{"a", 3}, row)
			return
		}
		<-changed
	}
}
