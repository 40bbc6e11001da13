// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-net/sluice/cmd/suggest"
	"github.com/sluice-net/sluice/cmd/version"
	"github.com/sluice-net/sluice/sources/events"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/explain"
	"github.com/sluice-net/sluice/tables/trace"
)

// handlers answers the requests.
type handlers struct {
	log     *slog.Logger
	db      *statedb.DB
	health  statedb.Table[*tables.Health]
	ready   []tables.Readiness
	metrics prometheus.Gatherer
	node    tables.LocalNode
	events  *events.Source // nil if the agent has none
	explain *explain.Explainer
	tables  statusTables
	started time.Time
	// limits are those of --api-listen. The other listeners have their own, so that clients of
	// one take nothing from clients of another.
	limits        *limits
	metricsLimits *limits
	socketLimits  *limits
	// begun closes when what the handlers use has started: until then they answer only
	// probes. nil: it has.
	begun chan struct{}
	trace *trace.Builder // nil if the agent has none
	flow  *dataflow
	cni   *cniWaiter // nil if the agent has none

	collector Collector // nil if the agent has none
	// where the agent has pinned its maps, empty if nowhere; nil if it has none
	mapsDir func() string
}

// withLimits returns the same handlers with limits of their own.
func (h *handlers) withLimits(l *limits) *handlers {
	c := *h
	c.limits = l
	return &c
}

// mux returns the paths of the API. Profiles show memory and cost time, and what
// is removed is gone: they are for the owner of the socket only.
func (h *handlers) mux(owner bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", h.index)
	mux.HandleFunc("GET /web/{file}", servePageFile)
	h.monitored(mux)
	mux.HandleFunc("GET /version", h.version)
	question := func(pattern string, next http.HandlerFunc) {
		mux.Handle(pattern, h.limits.bound(h.limits.questions, next))
	}
	question("GET /status", h.getStatus)
	mux.HandleFunc("GET /tables", h.listTables)
	mux.HandleFunc("GET /tables/{table}", h.getTable)

	wire := http.StripPrefix("/statedb", h.db.HTTPHandler())
	mux.Handle("GET /statedb/dump", h.limits.bound(h.limits.dumps, wire))
	mux.Handle("GET /statedb/dump/{table}", h.limits.bound(h.limits.dumps, h.known(wire)))
	question("GET /statedb/query", h.query(wire))
	mux.HandleFunc("GET /statedb/changes/{table}", h.changes)

	mux.HandleFunc("GET /monitor", h.monitor)
	question("GET /rules", h.rules)
	question("GET /explain/policy", h.explainPolicy)
	question("GET /explain/egress", h.explainEgress)
	question("GET /graph", h.graph)
	question("GET /trace", h.getTrace)

	if owner {
		mux.HandleFunc("POST /gc", h.gc)
		mux.HandleFunc("GET /cni/wait", h.waitCNI)
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	} else {
		mux.HandleFunc("POST /gc", h.gcElsewhere)
	}
	return guard(h.log, h.limits, mux)
}

// metricsMux returns the paths for monitoring from other machines: no
// table, as these show the state of the cluster.
func (h *handlers) metricsMux() http.Handler {
	mux := http.NewServeMux()
	h.monitored(mux)
	return guard(h.log, h.limits, mux)
}

func (h *handlers) monitored(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", h.healthz)
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.HandleFunc("GET /startupz", h.startupz)
	mux.Handle(
		"GET /metrics",
		h.limits.bound(h.limits.scrapes, promhttp.HandlerFor(h.metrics, promhttp.HandlerOpts{})),
	)
}

// table returns the table of a name, or answers the request that there is none.
func (h *handlers) table(w http.ResponseWriter, name string) (statedb.TableMeta, bool) {
	meta := h.db.GetTable(h.db.ReadTxn(), name)
	if meta == nil {
		names := h.tableNames()
		hint := "the tables are: " + strings.Join(names, ", ")
		if near := suggest.Nearest(name, names); len(near) > 0 {
			hint = fmt.Sprintf(
				"did you mean %s? sluice tables, or /tables, lists all", strings.Join(near, ", "),
			)
		}
		writeJSON(
			w, http.StatusNotFound,
			errorBody{Err: fmt.Sprintf("there is no table %q; %s", name, hint), Tables: names},
		)
	}
	return meta, meta != nil
}

func (h *handlers) tableNames() []string {
	var names []string
	for _, meta := range h.db.GetTables(h.db.ReadTxn()) {
		names = append(names, meta.Name())
	}
	slices.Sort(names)
	return names
}

func (h *handlers) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		version.Info
		Node string `json:"node"`
	}{version.Get(), h.node.Name})
}

// index answers browsers with the page, and others with what there is.
func (h *handlers) index(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept")
	if wantsPage(r) {
		servePage(w, r, "index.html")
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, `%s on node %s

/healthz                  health of each module
/readyz                   whether the first pass is programmed, and if not, what is pending
/startupz                 health, once ready or a minute after the start
/metrics                  metrics for Prometheus
/version                  version of the agent
/status                   summary: health, tables, policies, maps, programs, drops
/tables                   the tables as JSON: rows, indexes, whether initialized
/tables/TABLE             a table as text; ?format=json, ?watch=true
/statedb/dump             all tables as JSON
/statedb/dump/TABLE       a table as JSON
/statedb/query            rows by index, as StateDB's RemoteTable asks for them
/statedb/changes/TABLE    rows as they change, a JSON object a line; ?cells=true as they are shown to people
/monitor                  drops and new flows as they happen, a JSON object a line; ?kind=, ?reason=, ?pod=
/explain/policy           what network policies say of a packet, and why; ?from=, ?to=, ?port=, ?protocol=
/explain/egress           by which gateway a packet leaves, and why; ?from=, ?to=
/trace                    what comes of one policy, from the object to the maps; ?policy=KIND/NAMESPACE/NAME
/graph                    how data flows from sources through tables to maps and programs, and where it is stuck
/rules                    rules of network policies in force, and how many packets they decided
/gc                       POST: remove connections, on the socket only
/cni/wait                 for the CNI plugin, on the socket only: answers when a pod's interface is in force
/debug/pprof/             profiles, on the socket only

Tables:

`, version.Get(), h.node.Name)
	for _, name := range h.tableNames() {
		fmt.Fprintf(w, "  /tables/%s\n", name)
	}
}
