// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"net/http"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func TestCells(t *testing.T) {
	f := newFixture(t)
	resp, err := http.Get(f.serve(t) + "/statedb/changes/fruits?cells=true")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, "application/x-ndjson", resp.Header.Get("Content-Type"))
	lines := bufio.NewScanner(resp.Body)
	next := func() string {
		require.True(t, lines.Scan(), lines.Err())
		return lines.Text()
	}
	require.JSONEq(t, `{"columns": ["Name", "Prefix", "Note"]}`, next())
	require.JSONEq(t, `{"key": "6170706c65", "cells": ["apple", "10.1.0.0/16", "red"]}`, next())
	require.JSONEq(t, `{"key": "70656172", "cells": ["pear", "10.2.0.0/16", "green"]}`, next())
	require.JSONEq(t, `{"complete": true}`, next())
	f.remove(t, "apple")
	require.JSONEq(t, `{"key": "6170706c65", "deleted": true}`, next())

	status, body := f.get("/statedb/changes/fruits?cells=some")
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, body, `unknown value \"some\" of cells`)
}

// A table without rows has columns, and rows say how they are doing.
func TestCellsCondition(t *testing.T) {
	f := newFixture(t)
	resp, err := http.Get(f.serve(t) + "/statedb/changes/health?cells=true")
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for _, want := range []string{`{"columns": ["Module", "Level", "Message", "Error", "Count", "Since"]}`, `{"complete": true}`} {
		require.True(t, lines.Scan(), lines.Err())
		require.JSONEq(t, want, lines.Text())
	}
	wtxn := f.db.WriteTxn(f.rows)
	_, _, err = f.rows.Insert(wtxn, &tables.Health{ID: "maps", Level: cell.StatusDegraded, Message: "full"})
	require.NoError(t, err)
	wtxn.Commit()
	require.True(t, lines.Scan(), lines.Err())
	require.Contains(t, lines.Text(), `"condition":"error"`)
}
