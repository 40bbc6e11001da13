// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/sources/events"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

type noPrograms struct{}

func (noPrograms) Loaded() bool         { return false }
func (noPrograms) Events() *ebpf.Map    { return nil }
func (noPrograms) Map(string) *ebpf.Map { return nil }

// observed is an agent that consists of the API and events.
type observed struct {
	t        *testing.T
	hive     *hive.Hive
	log      *slog.Logger
	server   *Server
	db       *statedb.DB
	monitors statedb.Table[*tables.Monitor]
	cookies  statedb.RWTable[*tables.RuleCookie]
}

func startObserved(t *testing.T) *observed {
	o := &observed{t: t, log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))}
	o.hive = hive.New(
		statedb.Cell, job.Cell, cell.SimpleHealthCell,
		cell.Provide(
			tables.NewHealthTable, statedb.RWTable[*tables.Health].ToTable,
			tables.NewEndpointTable, statedb.RWTable[*tables.Endpoint].ToTable,
			tables.NewNodeTable, statedb.RWTable[*tables.Node].ToTable,
			tables.NewPodTable, statedb.RWTable[*tables.Pod].ToTable,
			tables.NewSubjectRouteTable, statedb.RWTable[*tables.SubjectRoute].ToTable,
			tables.NewEgressRuleTable, statedb.RWTable[*tables.EgressRule].ToTable,
			tables.NewRuleCookieTable, statedb.RWTable[*tables.RuleCookie].ToTable,
			tables.NewVerdictTable, statedb.RWTable[*tables.Verdict].ToTable,
			tables.NewSlotTable, statedb.RWTable[*tables.Slot].ToTable,
			func() (prometheus.Gatherer, prometheus.Registerer) {
				r := prometheus.NewRegistry()
				return r, r
			},
			func() tables.LocalNode { return tables.LocalNode{Name: "node-1"} },
			func() events.Datapath { return noPrograms{} },
			func(r job.Registry, h cell.Health) job.Group { return r.NewGroup(h) },
		),
		events.Cell, events.InjectCell, ListenCell, Cell,
		cell.Invoke(func(s *Server, db *statedb.DB, m statedb.Table[*tables.Monitor], endpoints statedb.RWTable[*tables.Endpoint], c statedb.RWTable[*tables.RuleCookie]) {
			o.server, o.db, o.monitors, o.cookies = s, db, m, c
			wtxn := db.WriteTxn(endpoints)
			defer wtxn.Abort()
			endpoints.Insert(wtxn, &tables.Endpoint{
				Name: tables.Name{Namespace: "shop", Name: "web-1"}, Node: "node-1", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.5")}, LabelSet: &tables.LabelSet{},
			})
			wtxn.Commit()
		}),
	)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.hive.RegisterFlags(flags)
	require.NoError(t, flags.Parse([]string{"--api-listen=127.0.0.1:0", "--socket="}))
	require.NoError(t, o.hive.Start(o.log, t.Context()))
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return o
}

func (o *observed) stop() { require.NoError(o.t, o.hive.Stop(o.log, context.Background())) }

// inject reports events by the script command.
func (o *observed) inject(yaml string) {
	dir := o.t.TempDir()
	require.NoError(o.t, os.WriteFile(filepath.Join(dir, "events.yaml"), []byte(yaml), 0o600))
	cmds, err := o.hive.ScriptCommands(o.log)
	require.NoError(o.t, err)
	state, err := script.NewState(o.t.Context(), dir, nil)
	require.NoError(o.t, err)
	_, err = cmds["events/inject"].Run(state, "events.yaml")
	require.NoError(o.t, err)
}

// follower reads the answer to a request for events.
type follower struct {
	t     *testing.T
	body  io.ReadCloser
	lines *bufio.Scanner
}

func (o *observed) monitor(query string) *follower {
	resp, err := http.Get(o.server.URL() + "/monitor?" + query)
	require.NoError(o.t, err)
	require.Equal(o.t, http.StatusOK, resp.StatusCode)
	require.Equal(o.t, "application/x-ndjson", resp.Header.Get("Content-Type"))
	o.t.Cleanup(func() { resp.Body.Close() })
	f := &follower{o.t, resp.Body, bufio.NewScanner(resp.Body)}
	require.Equal(o.t, "no programs are loaded on node-1: there are no events", f.next().Message)
	return f
}

func (f *follower) next() (e tables.Event) {
	require.True(f.t, f.lines.Scan(), f.lines.Err())
	require.NoError(f.t, json.Unmarshal(f.lines.Bytes(), &e))
	return e
}

const threeEvents = `
- {reason: no egress gateway, source: "10.1.0.5:43210", destination: "203.0.113.9:443", tcpFlags: S}
- {kind: flow, reason: to gateway, source: "10.1.0.5:43211", destination: "203.0.113.9:443"}
- {reason: no SNAT port, source: "10.1.0.6:43212", destination: "203.0.113.9:443", protocol: udp}
`

func TestMonitor(t *testing.T) {
	o := startObserved(t)
	all := o.monitor("")
	drops := o.monitor("kind=drop")
	web := o.monitor(MonitorQuery(nil, []string{"no SNAT port", "no-egress-gateway"}, []string{"shop/web-"}))
	rows := statedb.Collect(o.monitors.All(o.db.ReadTxn()))
	require.Len(t, rows, 1, "one follower wants flows")
	o.inject(threeEvents)
	o.inject(`[{kind: flow, reason: passed, source: "10.1.0.5:1", destination: "10.1.0.5:2"}, {reason: no SNAT port, source: 10.1.0.5, destination: 10.1.0.5}]`)

	for _, port := range []uint16{43210, 43211, 43212, 1, 0} {
		require.Equal(t, port, all.next().Source.Port)
	}
	for _, port := range []uint16{43210, 43212, 0} {
		require.Equal(t, port, drops.next().Source.Port)
	}
	for _, port := range []uint16{43210, 0} {
		e := web.next()
		require.Equal(t, port, e.Source.Port)
		require.Equal(t, "shop/web-1", e.Source.Pod)
	}

	require.NoError(t, all.body.Close())
	await.True(t, func() bool { return o.monitors.NumObjects(o.db.ReadTxn()) == 0 },
		"its row goes with the client")
	await.True(t, func() bool { return len(o.server.handlers.limits.streams.slots) == 2 })
	o.stop() // is not held up by the others
	require.False(t, drops.lines.Scan())
}

func TestMonitorRefuses(t *testing.T) {
	o := startObserved(t)
	defer o.stop()
	h := &fixture{handlers: o.server.handlers}
	for query, message := range map[string]string{
		"kind=lost":        `unknown kind "lost": want drop or flow`,
		"kind=":            `unknown kind ""`,
		"reason=bad+luck":  `unknown reason "bad luck": want one of: passed, `,
		"pod=Web":          `unknown pod "Web": want namespace/name`,
		"pods=web":         `unknown parameter "pods": want kind, reason or pod`,
		"pod=a&pod=%zz":    `parse the query`,
		"kind=drop&watch=": `unknown parameter "watch"`,
	} {
		status, body := h.get("/monitor?" + query)
		require.Equal(t, http.StatusBadRequest, status, query)
		var answer errorBody
		require.NoError(t, json.Unmarshal([]byte(body), &answer), query)
		require.Contains(t, answer.Err, message, query)
	}
	for range maxStreams {
		o.server.handlers.limits.streams.slots <- struct{}{}
	}
	status, body := h.get("/monitor")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "as many streams as there may be")
	require.Zero(t, o.monitors.NumObjects(o.db.ReadTxn()))

	status, body = newFixture(t).get("/monitor")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "this agent has no events")
}

func TestMonitorQuery(t *testing.T) {
	for _, kinds := range [][]string{nil, {"drop"}, {"drop", "flow"}} {
		f, err := parseMonitorQuery(MonitorQuery(kinds, []string{"no SNAT port"}, []string{"fd00::/64", "a/b"}))
		require.NoError(t, err)
		text := url.Values{"kind": kinds, "reason": {"no SNAT port"}, "pod": {"fd00::/64", "a/b"}}
		values, err := url.ParseQuery(f.String())
		require.NoError(t, err)
		require.Equal(t, text.Encode(), values.Encode())
	}
}

// The rules in force are counted, also those that nothing has met yet.
func TestRules(t *testing.T) {
	o := startObserved(t)
	defer o.stop()
	wtxn := o.db.WriteTxn(o.cookies)
	_, _, err := o.cookies.Insert(wtxn, &tables.RuleCookie{
		Cookie: 7,
		Rules:  []tables.RuleID{{Field: "spec.ingress[0]", Policy: tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "web"}}}},
	})
	require.NoError(t, err)
	wtxn.Commit()
	w := httptest.NewRecorder()
	o.server.handlers.mux(false).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/rules", nil))
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, `{"counted": false, "rules": [{"cookie": 7, "rules": ["NetworkPolicy/shop/web spec.ingress[0]"], "packets": 0, "bytes": 0}]}`, w.Body.String())
}
