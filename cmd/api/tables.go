// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
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
// ?watch=true also what changes from then on. In the format table ?longest=N cuts
// cells to so many characters, and ?color=true colors those that tell a state.
func (h *handlers) getTable(w http.ResponseWriter, r *http.Request) {
	meta, ok := h.table(w, r.PathValue("table"))
	if !ok {
		return
	}
	o, err := parseTableQuery(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, "%v", err)
		return
	}
	table := statedb.AnyTable{Meta: meta}
	switch {
	case o.json && o.watch:
		writeError(w, http.StatusBadRequest, "watch as JSON is /statedb/changes/%s", meta.Name())
	case o.watch:
		h.watchTable(w, r, table, o)
	default:
		h.limits.bound(h.limits.dumps, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if o.json {
				h.writeRows(w, table)
			} else {
				h.writeTable(w, table, o)
			}
		})).ServeHTTP(w, r)
	}
}

// tableQuery says how a table is wanted.
type tableQuery struct {
	json, watch, color bool
	longest            int // 0: cells are not cut
}

func parseTableQuery(query url.Values) (o tableQuery, err error) {
	switch format := query.Get("format"); format {
	case "", "table":
	case "json":
		o.json = true
	default:
		return o, fmt.Errorf("unknown format %q: want table or json", format)
	}
	for name, value := range map[string]*bool{"watch": &o.watch, "color": &o.color} {
		if *value, err = boolean(query, name); err != nil {
			return o, err
		}
	}
	if text := query.Get("longest"); text != "" {
		if o.longest, err = strconv.Atoi(text); err != nil || o.longest < 1 {
			return o, fmt.Errorf("unknown value %q of longest: want a number of characters", text)
		}
	}
	return o, nil
}

// boolean returns a parameter of a request, false if it is not given.
func boolean(query url.Values, name string) (value bool, err error) {
	text := query.Get(name)
	if text == "" {
		return false, nil
	}
	if value, err = strconv.ParseBool(text); err != nil {
		return false, fmt.Errorf("unknown value %q of %s: want true or false", text, name)
	}
	return value, nil
}

// text returns a writer of rows that look as they are wanted, below the columns of a table.
func (o tableQuery) text(w http.ResponseWriter) *columns.Writer {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	text := columns.NewWriter(w)
	text.Longest, text.Color = o.longest, o.color
	return text
}

// batch is how many rows are held at a time, so that what a request takes does
// not grow with the table.
const batch = 1000

// rows calls yield with the rows of a table for people, some at a time, until it
// fails.
func (h *handlers) rows(txn statedb.ReadTxn, table statedb.AnyTable, yield func([][]string) error) error {
	rows := make([][]string, 0, batch)
	for row := range table.All(txn) {
		if rows = append(rows, h.row(txn, table, row)); len(rows) < batch {
			continue
		}
		if err := yield(rows); err != nil {
			return err
		}
		rows = rows[:0]
	}
	return yield(rows)
}

// writeTable goes through the table twice: the columns are as wide as their widest cell.
func (h *handlers) writeTable(w http.ResponseWriter, table statedb.AnyTable, o tableQuery) {
	txn := h.db.ReadTxn()
	text, header := o.text(w), h.header(table)
	h.rows(txn, table, func(rows [][]string) error { // does not fail
		text.Measure(rows...)
		return nil
	})
	if err := text.Write(header); err != nil {
		return // the client is gone
	}
	h.rows(txn, table, func(rows [][]string) error { return text.Write(rows...) }) // as above
}

// writeRows writes a table as [Rows].
func (h *handlers) writeRows(w http.ResponseWriter, table statedb.AnyTable) {
	header, err := json.Marshal(h.header(table))
	if err != nil {
		writeError(w, http.StatusInternalServerError, "marshal the columns: %v", err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"columns":%s,"rows":[`, header) // an error shows at the next write
	separator := "\n"
	err = h.rows(h.db.ReadTxn(), table, func(rows [][]string) error {
		var b bytes.Buffer
		for _, row := range rows {
			data, err := json.Marshal(row)
			if err != nil {
				return err
			}
			b.WriteString(separator)
			b.Write(data)
			separator = ",\n"
		}
		_, err := b.WriteTo(w)
		return err
	})
	if err == nil {
		io.WriteString(w, "\n]}\n")
	}
}

// watchTable shows the rows of a table, then each change.
func (h *handlers) watchTable(w http.ResponseWriter, r *http.Request, table statedb.AnyTable, o tableQuery) {
	text, header := o.text(w), append([]string{"Event"}, h.header(table)...)
	event := func(name string, row []string) []string { return append([]string{name}, row...) }
	begun := false
	h.follow(w, r, table.Meta,
		func(txn statedb.ReadTxn, changes iter.Seq[change]) error {
			if !begun {
				begun = true
				h.rows(txn, table, func(rows [][]string) error { // does not fail
					for _, row := range rows {
						text.Measure(event(eventUpdated, row))
					}
					return nil
				})
				if err := text.Write(header); err != nil {
					return err
				}
			}
			rows := make([][]string, 0, batch)
			for c := range changes {
				name := eventUpdated
				if c.Deleted {
					name = eventDeleted
				}
				if rows = append(rows, event(name, h.row(txn, table, c.Object))); len(rows) < batch {
					continue
				}
				if err := text.Write(rows...); err != nil {
					return err
				}
				rows = rows[:0]
			}
			return text.Write(rows...)
		},
		func() error { return nil },
	)
}
