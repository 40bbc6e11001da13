// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fruit is a row with a unique and a longest-prefix-match index.
type fruit struct {
	Name   string       `json:"name"`
	Prefix netip.Prefix `json:"prefix"`
	Note   string       `json:"note"`
}

func (*fruit) TableHeader() []string { return []string{"Name", "Prefix", "Note"} }
func (f *fruit) TableRow() []string  { return []string{f.Name, f.Prefix.String(), f.Note} }

var (
	fruitNameIndex = statedb.Index[*fruit, string]{
		Name:       "name",
		FromObject: func(f *fruit) index.KeySet { return index.NewKeySet(index.String(f.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
	fruitPrefixIndex = statedb.NetIPPrefixIndex[*fruit]{
		Name:       "prefix",
		FromObject: func(f *fruit) iter.Seq[netip.Prefix] { return statedb.Just(f.Prefix) },
	}
)

type fixture struct {
	*handlers
	fruits statedb.RWTable[*fruit]
	rows   statedb.RWTable[*tables.Health]
	done   func(statedb.WriteTxn) // completes the initialization of fruits
}

func newFixture(t *testing.T, ready ...tables.Readiness) *fixture {
	db := statedb.New()
	fruits, err := statedb.NewTable(db, "fruits", fruitNameIndex, fruitPrefixIndex)
	require.NoError(t, err)
	rows, err := tables.NewHealthTable(db)
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fruit_count"}, func() float64 { return 3 }))
	f := &fixture{
		handlers: &handlers{
			log:     slog.New(slog.DiscardHandler),
			db:      db,
			health:  rows,
			ready:   ready,
			metrics: registry,
			node:    tables.LocalNode{Name: "node-1"},
			limits:  newLimits(),
		},
		fruits: fruits,
		rows:   rows,
	}
	wtxn := db.WriteTxn(fruits)
	f.done = fruits.RegisterInitializer(wtxn, "orchard")
	wtxn.Commit()
	f.insert(t, &fruit{"apple", netip.MustParsePrefix("10.1.0.0/16"), "red"})
	f.insert(t, &fruit{"pear", netip.MustParsePrefix("10.2.0.0/16"), "green"})
	return f
}

func (f *fixture) insert(t *testing.T, row *fruit) {
	wtxn := f.db.WriteTxn(f.fruits)
	defer wtxn.Abort()
	_, _, err := f.fruits.Insert(wtxn, row)
	require.NoError(t, err)
	wtxn.Commit()
}

func (f *fixture) insertHealth(t *testing.T, row *tables.Health) {
	wtxn := f.db.WriteTxn(f.rows)
	defer wtxn.Abort()
	_, _, err := f.rows.Insert(wtxn, row)
	require.NoError(t, err)
	wtxn.Commit()
}

func (f *fixture) remove(t *testing.T, name string) {
	wtxn := f.db.WriteTxn(f.fruits)
	defer wtxn.Abort()
	_, _, err := f.fruits.Delete(wtxn, &fruit{Name: name})
	require.NoError(t, err)
	wtxn.Commit()
}

// serve serves the API for real and returns its URL.
func (f *fixture) serve(t *testing.T) string {
	srv := httptest.NewServer(f.mux(false))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return srv.URL
}

// remote returns a table as StateDB's client sees it.
func (f *fixture) remote(t *testing.T, table string) *statedb.RemoteTable[*fruit] {
	base, err := url.Parse(f.serve(t) + "/statedb")
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	remote := statedb.NewRemoteTable[*fruit](base, table)
	remote.SetTransport(transport)
	return remote
}

// get returns the answer to a request.
func (f *fixture) get(path string, body ...byte) (status int, text string) {
	w := httptest.NewRecorder()
	f.mux(false).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, bytes.NewReader(body)))
	return w.Code, w.Body.String()
}

func TestDump(t *testing.T) {
	f := newFixture(t)
	status, body := f.get("/statedb/dump/fruits")
	require.Equal(t, http.StatusOK, status)
	var dump map[string][]fruit
	require.NoError(t, json.Unmarshal([]byte(body), &dump))
	require.Len(t, dump, 1)
	require.Len(t, dump["fruits"], 2)
	require.Equal(t, "apple", dump["fruits"][0].Name)

	status, body = f.get("/statedb/dump")
	require.Equal(t, http.StatusOK, status)
	require.NoError(t, json.Unmarshal([]byte(body), &map[string]any{}))
	require.Contains(t, body, `"health"`)
}

func TestUnknownTable(t *testing.T) {
	f := newFixture(t)
	query, err := json.Marshal(statedb.QueryRequest{Table: "fruit", Index: "name"})
	require.NoError(t, err)
	for _, path := range []string{"/statedb/dump/fruit", "/statedb/changes/fruit", "/tables/fruit", "/statedb/query"} {
		status, body := f.get(path, query...)
		require.Equal(t, http.StatusNotFound, status, path)
		var answer errorBody
		require.NoError(t, json.Unmarshal([]byte(body), &answer), path)
		require.Equal(t, []string{"fruits", "health"}, answer.Tables, path)
		require.Contains(t, answer.Err, `no table "fruit"`, path)
	}
}

func TestBadQuery(t *testing.T) {
	f := newFixture(t)
	for _, tc := range []struct{ name, body, message string }{
		{"empty body", ``, "parse the query"},
		{"no JSON", `{`, "parse the query"},
		{"wrong type", `{"table": 1}`, "parse the query"},
		{"unknown index", `{"table": "fruits", "index": "colour"}`, "its indexes are: name, prefix"},
		{"no index", `{"table": "fruits"}`, `no index ""`},
		{"internal index", `{"table": "fruits", "index": "__graveyard__"}`, "no index"},
		{"key is not base64", `{"table": "fruits", "index": "name", "key": "%"}`, "parse the key"},
		{"key is not one of the index", `{"table": "fruits", "index": "prefix", "key": "AA=="}`, "cannot be answered"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, body := f.get("/statedb/query", []byte(tc.body)...)
			require.Equal(t, http.StatusBadRequest, status, body)
			var answer errorBody
			require.NoError(t, json.Unmarshal([]byte(body), &answer))
			require.Contains(t, answer.Err, tc.message)
		})
	}
	status, _ := f.get("/statedb/query", bytes.Repeat([]byte{' '}, maxBody+1)...)
	require.Equal(t, http.StatusRequestEntityTooLarge, status)
}

func TestMethods(t *testing.T) {
	f := newFixture(t)
	for _, path := range []string{"/statedb/dump", "/tables", "/healthz", "/statedb/query"} {
		w := httptest.NewRecorder()
		f.mux(true).ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		require.Equal(t, http.StatusMethodNotAllowed, w.Code, path)
	}
}

func TestRemoteTable(t *testing.T) {
	f := newFixture(t)
	fruits, nuts := f.remote(t, "fruits"), f.remote(t, "nuts")
	found := func(table *statedb.RemoteTable[*fruit], q statedb.Query[*fruit]) (names []string, err error) {
		rows, errs := table.Get(t.Context(), q)
		for row := range rows {
			names = append(names, row.Name)
		}
		return names, <-errs
	}
	names, err := found(fruits, fruitNameIndex.Query("pear"))
	require.NoError(t, err)
	require.Equal(t, []string{"pear"}, names)

	names, err = found(fruits, fruitPrefixIndex.Query(netip.MustParseAddr("10.1.2.3")))
	require.NoError(t, err)
	require.Equal(t, []string{"apple"}, names)

	rows, errs := fruits.LowerBound(t.Context(), statedb.ByRevision[*fruit](0))
	require.Len(t, statedb.Collect(rows), 2)
	require.NoError(t, <-errs)

	_, err = found(nuts, fruitNameIndex.Query("pear"))
	require.ErrorContains(t, err, `no table "nuts"`)

	_, err = found(fruits, statedb.Index[*fruit, string]{Name: "colour", FromKey: index.String}.Query("red"))
	require.ErrorContains(t, err, `no index "colour"`)
}

func TestRemoteChanges(t *testing.T) {
	f := newFixture(t)
	remote := f.remote(t, "fruits")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes, _ := remote.Changes(ctx)
	var got []string
	for c := range changes {
		event := c.Object.Name + " " + c.Object.Note
		if c.Deleted {
			event += " deleted"
		}
		got = append(got, event)
		switch len(got) {
		case 2:
			f.insert(t, &fruit{"apple", netip.MustParsePrefix("10.1.0.0/16"), "yellow"})
		case 3:
			f.remove(t, "pear")
		case 4:
			cancel()
		}
	}
	require.Equal(t, []string{"apple red", "pear green", "apple yellow", "pear green deleted"}, got)
	await.True(t, func() bool { return len(f.limits.streams.slots) == 0 },
		"the iterator is closed when the client leaves")
}

func TestTooManyStreams(t *testing.T) {
	f := newFixture(t)
	for range maxStreams {
		f.limits.streams.slots <- struct{}{}
	}
	status, body := f.get("/statedb/changes/fruits")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "64 requests are being answered already, as many streams as there may be")
}

func TestHealthz(t *testing.T) {
	f := newFixture(t)
	set := func(row *tables.Health) { f.insertHealth(t, row) }
	check := func(wantStatus int, want string, reasons ...string) {
		t.Helper()
		status, body := f.get("/healthz")
		require.Equal(t, wantStatus, status)
		var report HealthReport
		require.NoError(t, json.Unmarshal([]byte(body), &report))
		require.Equal(t, want, report.Status)
		require.Equal(t, reasons, report.Reasons)
	}
	check(http.StatusOK, "ok")
	set(&tables.Health{ID: "sources", Level: cell.StatusOK})
	check(http.StatusOK, "ok")
	set(&tables.Health{ID: "reconcilers", Level: cell.StatusDegraded, Message: "map full", Error: "no space"})
	check(http.StatusOK, "degraded", "reconcilers: map full: no space")
	set(&tables.Health{ID: "shell.job-listener", Level: cell.StatusDegraded, Message: "Failed", Ended: true})
	check(http.StatusOK, "degraded", "reconcilers: map full: no space", "shell.job-listener: Failed")
	set(&tables.Health{ID: "egress.job-derive", Level: cell.StatusDegraded, Message: "Failed", Ended: true})
	check(http.StatusServiceUnavailable, "failed",
		"egress.job-derive: Failed", "reconcilers: map full: no space", "shell.job-listener: Failed")
}

func TestReadyz(t *testing.T) {
	programmed := false
	f := newFixture(t, tables.Readiness{Name: "egress", Ready: func() (bool, string) { return programmed, "first pass" }})
	check := func(wantStatus int, pending ...string) {
		t.Helper()
		status, body := f.get("/readyz")
		require.Equal(t, wantStatus, status)
		var report ReadyReport
		require.NoError(t, json.Unmarshal([]byte(body), &report))
		require.Equal(t, pending, report.Pending)
		require.Equal(t, len(pending) == 0, report.Ready)
	}
	check(http.StatusServiceUnavailable, "table fruits: waits for orchard", "egress: first pass")
	wtxn := f.db.WriteTxn(f.fruits)
	f.done(wtxn)
	wtxn.Commit()
	check(http.StatusServiceUnavailable, "egress: first pass")
	programmed = true
	check(http.StatusOK)
}

// The kubelet waits for the answer, and gives an agent that does not listen 5 minutes.
func TestDeployedStartupProbe(t *testing.T) {
	text, err := os.ReadFile("../../deploy/daemonset.yaml")
	require.NoError(t, err)
	var daemonSet appsv1.DaemonSet
	require.NoError(t, yaml.UnmarshalStrict(text, &daemonSet))
	probe := daemonSet.Spec.Template.Spec.Containers[0].StartupProbe
	require.Greater(t, time.Duration(probe.TimeoutSeconds)*time.Second, startupTime)
	require.EqualValues(t, 5*60, probe.PeriodSeconds*probe.FailureThreshold)
}

// The startup probe is answered when the agent is ready. One that has not become so in a
// minute is not restarted, as without an API server, unless a part of it has ended.
func TestStartupz(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var programmed atomic.Bool
		f := newFixture(t, tables.Readiness{Name: "egress", Ready: func() (bool, string) { return programmed.Load(), "first pass" }})
		wtxn := f.db.WriteTxn(f.fruits)
		f.done(wtxn)
		wtxn.Commit()
		began := time.Now()
		f.started = began
		ask := func(want int) time.Duration {
			t.Helper()
			status, _ := f.get("/startupz")
			require.Equal(t, want, status)
			return time.Since(began)
		}
		time.AfterFunc(5*time.Second, func() { programmed.Store(true) })
		require.InDelta(t, 5*time.Second, ask(http.StatusOK), float64(readyInterval))

		programmed.Store(false)
		require.Equal(t, startupTime, ask(http.StatusOK))
		require.Equal(t, startupTime, ask(http.StatusOK), "the next does not wait")
		f.insertHealth(t, &tables.Health{ID: "egress.job-derive", Level: cell.StatusDegraded, Message: "Failed", Ended: true})
		ask(http.StatusServiceUnavailable)
	})
}

func TestOtherPaths(t *testing.T) {
	f := newFixture(t)
	status, body := f.get("/")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "on node node-1")
	require.Contains(t, body, "/tables/fruits\n")

	status, body = f.get("/version")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `"node": "node-1"`)

	status, body = f.get("/metrics")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "fruit_count 3")

	status, _ = f.get("/debug/pprof/cmdline")
	require.Equal(t, http.StatusNotFound, status, "profiles are on the socket only")
	w := httptest.NewRecorder()
	f.mux(true).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/pprof/cmdline", nil))
	require.Equal(t, http.StatusOK, w.Code)
}
