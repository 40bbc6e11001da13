// SPDX-License-Identifier: Apache-2.0

package tampering

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/record"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// What is found is told in the table, the log, the metric and an Event on the Node.
func TestFound(t *testing.T) {
	var log bytes.Buffer
	events := record.NewFakeRecorder(10)
	db, registry := statedb.New(), prometheus.NewRegistry()
	table := tablestest.Open(t, db, tables.NewTamperingTable)
	r, err := newRecorder(params{
		Log: slog.New(slog.NewTextHandler(&log, nil)), DB: db, Table: table, Events: events,
		Node: tables.LocalNode{Name: "node-1"}, Registerer: registry,
	})
	require.NoError(t, err)
	r.Watch("sluice_pods", tables.TamperedForeign)
	metrics, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, metrics, 1, "it is counted from zero")
	require.Zero(t, metrics[0].GetMetric()[0].GetCounter().GetValue())
	r.Found("sluice_pods", tables.TamperedForeign, 0, "nothing")
	require.Zero(t, table.NumObjects(db.ReadTxn()))
	r.Found("sluice_pods", tables.TamperedForeign, 2, "10.0.0.1 is foreign")
	r.Found("sluice_pods", tables.TamperedForeign, 1, "10.0.0.2 is foreign")

	id := tables.TamperingID{Object: "sluice_pods", Kind: "foreign"}
	row, _, found := table.Get(db.ReadTxn(), tables.TamperingByID(id))
	require.True(t, found)
	require.EqualValues(t, 3, row.Count)
	require.Equal(t, "10.0.0.2 is foreign", row.Example)
	require.NotZero(t, row.Last)
	metrics, err = registry.Gather()
	require.NoError(t, err)
	require.Len(t, metrics, 1)
	require.Equal(t, 3.0, metrics[0].GetMetric()[0].GetCounter().GetValue())
	require.Contains(t, log.String(), "10.0.0.1 is foreign")
	require.Equal(t, "Warning Tampered sluice_pods: 2 foreign: 10.0.0.1 is foreign", <-events.Events)
	ref := NodeReference("node-1")
	require.Equal(t, "Node/node-1", ref.Kind+"/"+ref.Name)

	// Without API server, or recorder, there is nothing to tell.
	r.events = nil
	r.Found("from_pod", tables.TamperedDetached, 1, "at veth0")
	(*Recorder)(nil).Watch("from_pod", tables.TamperedDetached)
	(*Recorder)(nil).Found("from_pod", tables.TamperedDetached, 1, "at veth0")
	require.Equal(t, 2, table.NumObjects(db.ReadTxn()))
}
