// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/cmd/columns"
)

// Table is a table as /tables lists it.
type Table struct {
	Name        string   `json:"name"`
	Rows        int      `json:"rows"`
	Initialized bool     `json:"initialized"`
	Pending     []string `json:"pending,omitempty"` // what must complete for it to be initialized
	Indexes     []string `json:"indexes"`
	Revision    uint64   `json:"revision"` // grows with every change
}

func (h *handlers) listTables(w http.ResponseWriter, _ *http.Request) {
	txn := h.db.ReadTxn()
	list := []Table{}
	for _, meta := range h.db.GetTables(txn) {
		initialized, _ := meta.Initialized(txn)
		list = append(list, Table{
			Name:        meta.Name(),
			Rows:        meta.NumObjects(txn),
			Initialized: initialized,
			Pending:     meta.PendingInitializers(txn),
			Indexes:     meta.Indexes(),
			Revision:    meta.Revision(txn),
		})
	}
	slices.SortFunc(list, func(a, b Table) int { return strings.Compare(a.Name, b.Name) })
	writeJSON(w, http.StatusOK, list)
}

// Rows is a table as its row type renders it for people.
type Rows struct {
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

// Values of the first column of a table that is watched.
const (
	eventUpdated = "UPDATED"
	eventDeleted = "DELETED"
)

// getTable renders a table: ?format=table (default) or json, and with
// ?watch=true also what changes from then on. ?longest=N cuts cells of the format
// table to so many characters.
func (h *handlers) getTable(w http.ResponseWriter, r *http.Request) {
	meta, ok := h.table(w, r.PathValue("table"))
	if !ok {
		return
	}
	query := r.URL.Query()
	watch := false
	if text := query.Get("watch"); text != "" {
		var err error
		if watch, err = strconv.ParseBool(text); err != nil {
			writeError(w, http.StatusBadRequest, "unknown value %q of watch: want true or false", text)
			return
		}
	}
	longest := 0
	if text := query.Get("longest"); text != "" {
		var err error
		if longest, err = strconv.Atoi(text); err != nil || longest < 1 {
			writeError(w, http.StatusBadRequest, "unknown value %q of longest: want a number of characters", text)
			return
		}
	}
	table := statedb.AnyTable{Meta: meta}
	switch format := query.Get("format"); {
	case format != "" && format != "table" && format != "json":
		writeError(w, http.StatusBadRequest, "unknown format %q: want table or json", format)
	case format == "json" && watch:
		writeError(w, http.StatusBadRequest, "watch as JSON is /statedb/changes/%s", meta.Name())
	case format == "json":
		writeJSON(w, http.StatusOK, h.render(table))
	case watch:
		h.watchTable(w, r, table, longest)
	default:
		rows := h.render(table)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		text := columns.NewWriter(w)
		text.Longest = longest
		text.Write(append([][]string{rows.Columns}, rows.Rows...)...) // fails if the client is gone
	}
}

func (h *handlers) render(table statedb.AnyTable) Rows {
	rows := Rows{Columns: h.header(table), Rows: [][]string{}}
	txn := h.db.ReadTxn()
	for row := range table.All(txn) {
		rows.Rows = append(rows.Rows, h.row(txn, table, row))
	}
	return rows
}

func (h *handlers) watchTable(w http.ResponseWriter, r *http.Request, table statedb.AnyTable, longest int) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	text := columns.NewWriter(w)
	text.Longest = longest
	lines := [][]string{append([]string{"Event"}, h.header(table)...)}
	h.follow(w, r, table.Meta,
		func(changes []change) error {
			txn := h.db.ReadTxn()
			for _, c := range changes {
				event := eventUpdated
				if c.Deleted {
					event = eventDeleted
				}
				lines = append(lines, append([]string{event}, h.row(txn, table, c.Object)...))
			}
			err := text.Write(lines...)
			lines = nil
			return err
		},
		func() error { return nil },
	)
}
