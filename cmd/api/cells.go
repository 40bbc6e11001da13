// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/hex"
	"encoding/json"
	"iter"
	"net/http"
	"reflect"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables/condition"
)

// Changes of a table as people are shown them: lines of JSON, of which the first
// has the columns, and the one behind the rows that there are at first is complete.
type (
	cellsHeader struct {
		Columns []string `json:"columns"`
	}

	cellsChange struct {
		Key       string              `json:"key"` // hex of the primary key, by which rows are ordered
		Cells     []string            `json:"cells,omitempty"`
		Condition condition.Condition `json:"condition,omitempty"`
		Deleted   bool                `json:"deleted,omitempty"`
	}

	cellsMark struct {
		Complete bool `json:"complete,omitempty"`
	}
)

// cells streams the rows of a table and their changes, with the columns that
// /tables has. An empty object is sent when nothing changed for a while.
func (h *handlers) cells(w http.ResponseWriter, r *http.Request, table statedb.AnyTable) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	key := primaryKey(table.Meta)
	begun := false
	h.follow(w, r, table.Meta,
		func(txn statedb.ReadTxn, changes iter.Seq[change]) error {
			first := !begun
			begun = true
			if first {
				if err := enc.Encode(cellsHeader{h.header(table)}); err != nil {
					return err
				}
			}
			for c := range changes {
				line := cellsChange{Key: hex.EncodeToString(key(c.Object)), Deleted: c.Deleted}
				if !c.Deleted {
					line.Cells, line.Condition = h.row(txn, table, c.Object), condition.Of(c.Object)
				}
				if err := enc.Encode(line); err != nil {
					return err
				}
			}
			if first {
				return enc.Encode(cellsMark{Complete: true})
			}
			return nil
		},
		func() error { return enc.Encode(cellsMark{}) },
	)
}

// primaryKey returns how to get the primary key of a row of a table whose row type
// is not known here, by reflection as [changeIterator] does.
func primaryKey(meta statedb.TableMeta) func(row any) []byte {
	indexer := reflect.ValueOf(meta).MethodByName("PrimaryIndexer").Call(nil)[0]
	objectToKey := indexer.MethodByName("ObjectToKey")
	return func(row any) []byte {
		return objectToKey.Call([]reflect.Value{reflect.ValueOf(row)})[0].Bytes()
	}
}
