// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/cmd/version"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/condition"
)

// Status is the answer of /status: how the agent, and what it programs, is
// doing, on one screen.
type Status struct {
	OK       bool     `json:"ok"`                 // healthy, ready, and nothing has failed
	Problems []string `json:"problems,omitempty"` // why it is not

	Node          string       `json:"node"`
	Version       version.Info `json:"version"`
	Started       time.Time    `json:"started"`
	UptimeSeconds int64        `json:"uptimeSeconds"`

	Health   HealthStatus           `json:"health"`
	Ready    ReadyReport            `json:"ready"`
	Tables   TablesStatus           `json:"tables"`
	Sources  []*tables.ObjectSource `json:"sources"`
	Policies PoliciesStatus         `json:"policies"`
	Report   *ReportStatus          `json:"report,omitempty"`  // of this node; nil if there is none to be
	Leaders  []*tables.Leadership   `json:"leaders,omitempty"` // which operator leads, as this one knows
	Maps     []MapStatus            `json:"maps"`
	Programs []ProgramStatus        `json:"programs"`
	Tampered []*tables.Tampering    `json:"tampered,omitempty"` // by others, since the agent's start
	Overlay  *OverlayStatus         `json:"overlay,omitempty"`
	GC       []GCStatus             `json:"gc"`
	Drops    DropsStatus            `json:"drops"`
}

// HealthStatus is /healthz without the modules that are well.
type HealthStatus struct {
	Status  string   `json:"status"`
	Reasons []string `json:"reasons,omitempty"`
	Modules int      `json:"modules"`
}

// TablesStatus are all tables, those of which something is to be said by name.
type TablesStatus struct {
	Tables        int            `json:"tables"`
	Rows          int            `json:"rows"`
	Uninitialized []PendingTable `json:"uninitialized,omitempty"`

	// Statuses are the tables whose rows have a status, if not all of them are done.
	Statuses []RowsStatus `json:"statuses,omitempty"`
}

// PendingTable is a table that is not initialized.
type PendingTable struct {
	Name    string   `json:"name"`
	Pending []string `json:"pending"` // what must complete for it to be
}

// RowsStatus counts the rows of a table by their status.
type RowsStatus struct {
	Name string `json:"name"`
	Rows int    `json:"rows"`
	condition.Counts
	Error string `json:"error,omitempty"` // of the first that has one
}

// OverlayStatus is by what this node knows overlay packets of other nodes.
type OverlayStatus struct {
	Keys           []string `json:"keys"` // numbers; the first is sent with
	AcceptUnsigned bool     `json:"acceptUnsigned"`
	Open           string   `json:"open,omitempty"` // what that does not protect from
}

// MapStatus is how a map of the kernel is doing.
type MapStatus struct {
	*tables.BPFMap
	PressurePercent float64 `json:"pressurePercent"`
}

// statusTables are the tables of which /status has more than numbers of rows, and
// those that say more of the rows of others. An agent without one of them leaves it out.
type statusTables struct {
	cell.In

	Sources     statedb.Table[*tables.ObjectSource]        `optional:"true"`
	Report      statedb.Table[*tables.PolicyReport]        `optional:"true"`
	Reporting   tables.Reporting                           `optional:"true"`
	Leaders     statedb.Table[*tables.Leadership]          `optional:"true"`
	Maps        statedb.Table[*tables.BPFMap]              `optional:"true"`
	Egress      statedb.Table[*tables.EgressPolicyStatus]  `optional:"true"`
	Network     statedb.Table[*tables.NetworkPolicyStatus] `optional:"true"`
	Attachments statedb.Table[*tables.Attachment]          `optional:"true"`
	Keys        statedb.Table[*tables.OverlayKeys]         `optional:"true"`
	Runs        statedb.Table[*tables.CTGCRun]             `optional:"true"`
	Drops       statedb.Table[*tables.Drop]                `optional:"true"`
	Tampering   statedb.Table[*tables.Tampering]           `optional:"true"`
	Selectors   statedb.Table[*tables.Selector]            `optional:"true"`
}

func (h *handlers) getStatus(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, h.summary(time.Now()))
}

// summary looks at every row that has a status once, in one snapshot.
func (h *handlers) summary(now time.Time) *Status {
	txn := h.db.ReadTxn()
	health := h.healthReport(txn)
	s := &Status{
		Node:          h.node.Name,
		Version:       version.Get(),
		Started:       h.started.UTC(),
		UptimeSeconds: int64(now.Sub(h.started).Seconds()),
		Health:        HealthStatus{Status: health.Status, Reasons: health.Reasons, Modules: len(health.Modules)},
		Ready:         ReadyReport{Pending: h.pending()},
		Tables:        h.tablesStatus(txn),
		Sources:       all(h.tables.Sources, txn),
		Policies:      h.tables.policies(txn),
		Report:        h.tables.report(txn),
		Leaders:       all(h.tables.Leaders, txn),
		Programs:      programs(all(h.tables.Attachments, txn)),
		Tampered:      all(h.tables.Tampering, txn),
		GC:            collections(all(h.tables.Runs, txn)),
		Drops:         drops(all(h.tables.Drops, txn)),
	}
	s.Ready.Ready = len(s.Ready.Pending) == 0
	for _, k := range all(h.tables.Keys, txn) {
		s.Overlay = &OverlayStatus{AcceptUnsigned: k.AcceptUnsigned, Open: k.Open(), Keys: k.Numbers()}
	}
	s.Maps = []MapStatus{}
	for _, m := range all(h.tables.Maps, txn) {
		s.Maps = append(s.Maps, MapStatus{m, m.PressurePercent()})
	}
	s.judge()
	return s
}

// all returns the rows of a table, none if there is no such table.
func all[Row any](table statedb.Table[Row], txn statedb.ReadTxn) []Row {
	rows := []Row{}
	if table != nil {
		rows = slices.AppendSeq(rows, statedb.ToSeq(table.All(txn)))
	}
	return rows
}

// judge collects what is not as it should be. What is wrong with objects, and
// with where they are read from, is in the health.
func (s *Status) judge() {
	add := func(what string, reasons ...string) {
		for _, reason := range reasons {
			s.Problems = append(s.Problems, what+": "+reason)
		}
	}
	if s.Health.Status != statusOK && len(s.Health.Reasons) == 0 {
		add("health", s.Health.Status)
	}
	add("health", s.Health.Reasons...)
	add("not ready", s.Ready.Pending...)
	for _, t := range s.Tables.Statuses {
		if t.Errors > 0 {
			add("table "+t.Name, fmt.Sprintf("%d of %d rows failed: %s", t.Errors, t.Rows, t.Error))
		}
	}
	s.OK = len(s.Problems) == 0
}

func (h *handlers) tablesStatus(txn statedb.ReadTxn) (s TablesStatus) {
	for _, meta := range h.db.GetTables(txn) {
		s.Tables++
		s.Rows += meta.NumObjects(txn)
		if ok, _ := meta.Initialized(txn); !ok {
			s.Uninitialized = append(s.Uninitialized, PendingTable{meta.Name(), meta.PendingInitializers(txn)})
		}
		if rows := rowsStatus(txn, meta); rows.Pending+rows.Errors > 0 {
			s.Statuses = append(s.Statuses, rows)
		}
	}
	slices.SortFunc(s.Uninitialized, func(a, b PendingTable) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.Statuses, func(a, b RowsStatus) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// rowsStatus counts the rows of a table by their status, if they have one.
func rowsStatus(txn statedb.ReadTxn, meta statedb.TableMeta) RowsStatus {
	s := RowsStatus{Name: meta.Name()}
	for row := range (statedb.AnyTable{Meta: meta}).All(txn) {
		r, ok := row.(interface{ GetStatus() reconciler.Status })
		if !ok {
			return s
		}
		s.Rows++
		s.Add(condition.Of(row))
		if s.Errors == 1 && s.Error == "" {
			status := r.GetStatus()
			s.Error = status.GetError()
		}
	}
	return s
}
