// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/columns"
	"github.com/sluice-net/sluice/tables"
)

func TestListTables(t *testing.T) {
	f := newFixture(t)
	status, body := f.get("/tables")
	require.Equal(t, http.StatusOK, status)
	var list []Table
	require.NoError(t, json.Unmarshal([]byte(body), &list))
	require.Equal(t, []Table{
		{Name: "fruits", Rows: 2, Pending: []string{"orchard"}, Indexes: []string{"name", "prefix"}, Revision: 2},
		{Name: "health", Initialized: true, Indexes: []string{"id", "level"}},
	}, list)
}

func TestGetTable(t *testing.T) {
	f := newFixture(t)
	status, body := f.get("/tables/fruits")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "Name    Prefix        Note\napple   10.1.0.0/16   red\npear    10.2.0.0/16   green\n", body)

	status, body = f.get("/tables/fruits?longest=4&color=true")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "Name   Pre…   Note\napp…   10.…   red\npear   10.…   gre…\n", body)
	f.insertHealth(t, &tables.Health{ID: "a", Level: cell.StatusDegraded})
	_, body = f.get("/tables/health?color=true")
	require.Contains(t, body, columns.Bad.Paint("Degraded"))
	_, body = f.get("/tables/health")
	require.NotContains(t, body, "\x1b")

	status, body = f.get("/tables/fruits?format=json")
	require.Equal(t, http.StatusOK, status)
	var rows Rows
	require.NoError(t, json.Unmarshal([]byte(body), &rows))
	require.Equal(t, []string{"Name", "Prefix", "Note"}, rows.Columns)
	require.Equal(t, []string{"pear", "10.2.0.0/16", "green"}, rows.Rows[1])

	for _, query := range []string{"format=xml", "watch=maybe", "color=auto", "longest=few", "longest=0", "format=json&watch=true"} {
		status, _ = f.get("/tables/fruits?" + query)
		require.Equal(t, http.StatusBadRequest, status, query)
	}
}

// A table of more rows than are held at a time is whole, and aligned by its widest cell.
func TestLongTable(t *testing.T) {
	f := newFixture(t)
	for i := range 2*batch + 1 {
		f.insert(t, &fruit{fmt.Sprintf("fruit-%04d", i), netip.MustParsePrefix("10.3.0.0/16"), "x"})
	}
	f.insert(t, &fruit{"z-the-last-and-longest", netip.MustParsePrefix("10.3.0.0/16"), "x"})
	_, body := f.get("/tables/fruits")
	lines := strings.Split(strings.TrimSuffix(body, "\n"), "\n")
	require.Len(t, lines, 2*batch+5)
	for _, line := range lines {
		require.Equal(t, len("z-the-last-and-longest   "), max(strings.Index(line, "10."), strings.Index(line, "Prefix")), line)
	}
	_, body = f.get("/tables/fruits?format=json")
	var rows Rows
	require.NoError(t, json.Unmarshal([]byte(body), &rows))
	require.Len(t, rows.Rows, 2*batch+4)
}

func TestWatchTable(t *testing.T) {
	f := newFixture(t)
	resp, err := http.Get(f.serve(t) + "/tables/fruits?watch=true")
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	next := func() string {
		require.True(t, lines.Scan(), lines.Err())
		return lines.Text()
	}
	require.Equal(t, "Event     Name    Prefix        Note", next())
	require.Equal(t, "UPDATED   apple   10.1.0.0/16   red", next())
	require.Equal(t, "UPDATED   pear    10.2.0.0/16   green", next())
	f.remove(t, "apple")
	require.Equal(t, "DELETED   apple   10.1.0.0/16   red", next())
}
