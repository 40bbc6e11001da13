// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
)

// The handler of StateDB v0.8.3 answers 200 to an unknown table, panics on an
// unknown index and does not close the iterator of a client that left. What
// follows checks requests before they reach it, and replaces its changes.

// keepAlive is how often a client that follows changes gets an empty one.
const keepAlive = 30 * time.Second

// known passes on requests for tables that exist.
func (h *handlers) known(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := h.table(w, r.PathValue("table")); ok {
			next.ServeHTTP(w, r)
		}
	})
}

// query passes on queries that StateDB can answer.
func (h *handlers) query(next http.Handler) http.HandlerFunc {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			h.limits.bodyError(w, err)
			return
		}
		var q statedb.QueryRequest
		if err := json.Unmarshal(body, &q); err != nil {
			writeError(w, http.StatusBadRequest, "parse the query: %v", err)
			return
		}
		meta, ok := h.table(w, q.Table)
		if !ok {
			return
		}
		if indexes := meta.Indexes(); q.Index != statedb.RevisionIndex && !slices.Contains(indexes, q.Index) {
			writeJSON(w, http.StatusBadRequest, errorBody{
				Err: fmt.Sprintf("table %q has no index %q; its indexes are: %s", q.Table, q.Index,
					strings.Join(indexes, ", ")),
				Indexes: indexes,
			})
			return
		}
		if _, err := base64.StdEncoding.DecodeString(q.Key); err != nil {
			writeError(w, http.StatusBadRequest, "parse the key of the query: %v", err)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// changes streams the rows of a table, then each change, in StateDB's format.
func (h *handlers) changes(w http.ResponseWriter, r *http.Request) {
	meta, ok := h.table(w, r.PathValue("table"))
	if !ok {
		return
	}
	cells, err := boolean(r.URL.Query(), "cells")
	switch {
	case err != nil:
		writeError(w, http.StatusBadRequest, "%v", err)
		return
	case cells:
		h.cells(w, r, statedb.AnyTable{Meta: meta})
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	h.follow(w, r, meta,
		func(_ statedb.ReadTxn, changes iter.Seq[change]) error {
			for c := range changes {
				if err := enc.Encode(c); err != nil {
					return err
				}
			}
			return nil
		},
		func() error { return enc.Encode(change{}) },
	)
}

// follow calls each with what changed in a table, beginning with all rows, and
// alive when nothing did for a while, until one fails or the client leaves.
func (h *handlers) follow(w http.ResponseWriter, r *http.Request, meta statedb.TableMeta,
	each func(statedb.ReadTxn, iter.Seq[change]) error, alive func() error,
) {
	release, ok := h.limits.admit(w, r, h.limits.streams)
	if !ok {
		return
	}
	defer release()
	it, err := newChangeIterator(h.db, meta)
	if err != nil {
		writeError(w, http.StatusInternalServerError, "follow changes: %v", err)
		return
	}
	defer it.close()

	ticker := time.NewTicker(keepAlive)
	defer ticker.Stop()
	control := http.NewResponseController(w)
	for {
		// The table keeps rows that are deleted until each follower has them. So a follower that
		// falls behind is cut off.
		h.limits.boundTime(w)
		txn := h.db.ReadTxn()
		changes, watch := it.next(txn)
		if err := each(txn, changes); err != nil {
			h.log.Debug("Client stops following changes", "table", meta.Name(), "error", err)
			return
		}
		control.Flush() // an error shows at the next write
		select {
		case <-r.Context().Done():
			return
		case <-watch:
		case <-ticker.C:
			h.limits.boundTime(w)
			if alive() != nil {
				return
			}
		}
	}
}
