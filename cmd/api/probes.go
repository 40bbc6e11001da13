// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-net/sluice/tables"
)

// Values of [HealthReport.Status].
const (
	statusOK       = "ok"
	statusDegraded = "degraded" // something does not work; restarting would not help
	statusFailed   = "failed"   // a loop has ended; only restarting helps
)

// ModuleDropping is the module that says which policies drop packets. It is named first.
const ModuleDropping = "dropping"

// inessential modules may fail without the agent being restarted for it.
var inessential = []string{"shell"}

// HealthReport is the answer of /healthz.
type HealthReport struct {
	Status  string           `json:"status"`
	Reasons []string         `json:"reasons,omitempty"` // why it is not ok
	Modules []*tables.Health `json:"modules"`
}

// healthz answers 200 also when degraded: to be restarted by the kubelet for an
// API server that is gone would only make things worse.
func (h *handlers) healthz(w http.ResponseWriter, _ *http.Request) {
	report := h.healthReport(h.db.ReadTxn())
	status := http.StatusOK
	if report.Status == statusFailed {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, report)
}

// startupTime is for how long after its start an agent may fill its maps before the
// kubelet asks whether it is ready. It tells of each answer that it is not in an Event.
const startupTime = time.Minute

// readyInterval is how often a request that waits looks whether the agent is ready.
const readyInterval = 100 * time.Millisecond

// startupz answers as healthz does, once the agent is ready, or has had its time to be:
// one without an API server is not restarted for it.
func (h *handlers) startupz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithDeadline(r.Context(), h.started.Add(startupTime))
	defer cancel()
	look := time.NewTicker(readyInterval)
	defer look.Stop()
	for ctx.Err() == nil && len(h.pending()) > 0 {
		select {
		case <-ctx.Done():
		case <-look.C:
		}
	}
	h.healthz(w, r)
}

// answeredWhileStarting are the paths that need nothing but the tables. Goroutines tell
// why a start hangs.
var answeredWhileStarting = []string{"/healthz", "/readyz", "/startupz", "/version", "/debug/pprof/goroutine"}

// startWait is for how long other requests wait for the agent to start: loading the
// programs has taken 10 s on a busy node.
const startWait = 20 * time.Second

// starting reports whether what the handlers use has not started.
func (h *handlers) starting() bool {
	select {
	case <-h.begun:
		return false
	default:
		return h.begun != nil
	}
}

// awaitStart waits until what the handlers use has started, and reports whether it has.
func (h *handlers) awaitStart(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, h.limits.startWait)
	defer cancel()
	if h.starting() {
		select {
		case <-h.begun:
		case <-ctx.Done():
		}
	}
	return !h.starting()
}

// whileStarting has all but a few requests wait until the agent has started.
func (h *handlers) whileStarting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(answeredWhileStarting, r.URL.Path) || h.awaitStart(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusServiceUnavailable, "the agent is starting: try again")
	})
}

func (h *handlers) healthReport(txn statedb.ReadTxn) HealthReport {
	report := HealthReport{Status: statusOK, Modules: []*tables.Health{}}
	for row := range h.health.All(txn) {
		report.add(row)
	}
	return report
}

func (r *HealthReport) add(row *tables.Health) {
	r.Modules = append(r.Modules, row)
	if row.Level != cell.StatusDegraded {
		return
	}
	reason := row.ID + ": " + row.Message
	if row.Error != "" {
		reason += ": " + row.Error
	}
	if row.ID == ModuleDropping {
		r.Reasons = slices.Insert(r.Reasons, 0, reason)
	} else {
		r.Reasons = append(r.Reasons, reason)
	}
	switch {
	case row.Ended && essential(row.ID):
		r.Status = statusFailed
	case r.Status == statusOK:
		r.Status = statusDegraded
	}
}

func essential(id string) bool {
	for _, module := range inessential {
		if strings.HasPrefix(id, module+".") {
			return false
		}
	}
	return true
}

// ReadyReport is the answer of /readyz.
type ReadyReport struct {
	Ready   bool     `json:"ready"`
	Pending []string `json:"pending,omitempty"` // what is not ready, and what it waits for
}

func (h *handlers) readyz(w http.ResponseWriter, _ *http.Request) {
	report := ReadyReport{Pending: h.pending()}
	report.Ready = len(report.Pending) == 0
	status := http.StatusOK
	if !report.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, report)
}

// readyMetric says the same as /readyz.
func (h *handlers) readyMetric() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_ready", Help: "1 when all tables are initialized and each map agreed with them once, as /readyz says.",
	}, func() float64 {
		if len(h.pending()) > 0 {
			return 0
		}
		return 1
	})
}

func (h *handlers) pending() (pending []string) {
	if h.starting() {
		return []string{"the agent is starting"}
	}
	txn := h.db.ReadTxn()
	for _, name := range h.tableNames() {
		meta := h.db.GetTable(txn, name)
		if meta == nil {
			continue
		}
		if ok, _ := meta.Initialized(txn); !ok {
			pending = append(pending, fmt.Sprintf("table %s: waits for %s", name, strings.Join(meta.PendingInitializers(txn), ", ")))
		}
	}
	for _, ready := range h.ready {
		if ok, reason := ready.Ready(); !ok {
			pending = append(pending, ready.Name+": "+reason)
		}
	}
	return pending
}
