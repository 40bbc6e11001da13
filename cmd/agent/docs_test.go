// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

const root = "../.."

func read(t *testing.T, path string) string {
	b, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(b)
}

// The documents name every flag, every table and every column.
func TestDocumentsAreComplete(t *testing.T) {
	readme, tables := read(t, "README.md"), read(t, "docs/tables.md")
	var db *statedb.DB
	h := New(Cell, cell.Invoke(func(d *statedb.DB) { db = d }))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse([]string{"--state-dir=" + t.TempDir(), "--bpf=memory", "--api-listen=", "--socket=" + filepath.Join(t.TempDir(), "s")}))
	require.NoError(t, h.Populate(newCluster(t, nil).log))

	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "shell-sock-path" {
			require.Contains(t, readme, "`--"+f.Name+"`")
			require.Contains(t, readme, "`"+EnvironmentName(f.Name)+"`")
		}
	})
	txn := db.ReadTxn()
	for _, table := range db.GetTables(txn) {
		require.Contains(t, readme, "`"+table.Name()+"`")
		heading := regexp.MustCompile(`(?m)^## (.*, )?` + table.Name() + `(,.*)?$`).FindStringIndex(tables)
		require.NotNil(t, heading, "docs/tables.md has nothing about %s", table.Name())
		_, columns, _ := strings.Cut(tables[heading[1]:], "\nColumns: ")
		columns, _, _ = strings.Cut(strings.ReplaceAll(columns, "\n", " "), ".")
		require.Equal(t, strings.Join(statedb.AnyTable{Meta: table}.TableHeader(), ", "), columns, table.Name())
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

func TestLinksOfDocumentsLeadSomewhere(t *testing.T) {
	documents, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	require.NoError(t, err)
	for _, document := range append(documents, filepath.Join(root, "README.md")) {
		b, err := os.ReadFile(document)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(document), m[1]))
			require.NoError(t, err, "%s has a link to %s", document, m[1])
		}
	}
}
