// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"context"
	"log/slog"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type cellTables struct {
	cell.In

	DB       *statedb.DB
	Rulesets statedb.RWTable[*tables.Ruleset]
	Classes  statedb.RWTable[*tables.Class]

	Entries  tables.Desired[*tables.PolicyEntry]
	Verdicts tables.Desired[*tables.Verdict]
	Compiled statedb.Table[*tables.Compiled]
	Cookies  statedb.Table[*tables.RuleCookie]
}

// The cell's outputs are initialized when the first rulesets and classes are computed.
func TestCell(t *testing.T) {
	var w cellTables
	var done func(statedb.WriteTxn)
	h := hive.New(statedb.Cell, job.Cell, cell.SimpleHealthCell, cell.Module("test", "Test",
		cell.Provide(
			job.Registry.NewGroup,
			func() bpf.Config { return bpf.DefaultConfig },
			derive.NewMetrics,
			tables.NewRulesetTable, statedb.RWTable[*tables.Ruleset].ToTable,
			tables.NewClassTable, statedb.RWTable[*tables.Class].ToTable,
			tables.NewVerdictMirrorTable, statedb.RWTable[*tables.VerdictMirror].ToTable,
		),
		Cell,
		cell.Invoke(func(tables cellTables) {
			w = tables
			wtxn := w.DB.WriteTxn(w.Rulesets)
			done = w.Rulesets.RegisterInitializer(wtxn, "test")
			wtxn.Commit()
		})))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })

	initialized, watch := w.Cookies.Initialized(w.DB.ReadTxn())
	require.False(t, initialized)
	wtxn := w.DB.WriteTxn(w.Rulesets, w.Classes)
	_, _, err := w.Rulesets.Insert(wtxn, allowing(1, nil, 1))
	require.NoError(t, err)
	_, _, err = w.Classes.Insert(wtxn, class(1, []uint32{1}))
	require.NoError(t, err)
	done(wtxn)
	wtxn.Commit()
	<-watch
	txn := w.DB.ReadTxn()
	require.Equal(t, 3, w.Entries.NumObjects(txn))
	require.Equal(t, 2, w.Compiled.NumObjects(txn))
	require.Equal(t, 3, w.Verdicts.NumObjects(txn), "default allow, default deny, allow")
	require.Equal(t, 2, w.Cookies.NumObjects(txn))
}
