// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/derive"
)

// documents returns the text of the README and of docs by path.
func documents(t *testing.T) map[string]string {
	paths, err := filepath.Glob(filepath.Join(repository, "docs/*.md"))
	require.NoError(t, err)
	texts := map[string]string{}
	for _, path := range append(paths, filepath.Join(repository, "README.md")) {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		name, err := filepath.Rel(repository, path)
		require.NoError(t, err)
		texts[name] = string(b)
	}
	return texts
}

// populated is what the agent has before it starts.
type populated struct {
	cell.In

	DB       *statedb.DB
	Registry *prometheus.Registry
	Rules    *derive.Metrics
}

func populate(t *testing.T) (p populated, flags *pflag.FlagSet) {
	h := New(Cell, cell.Invoke(func(in populated) { p = in }))
	flags = populateHive(t, h, "--node-name=node-1", "--bpf=memory")
	return p, flags
}

// populateOperator is [populate] for the operator.
func populateOperator(t *testing.T) (p populated, flags *pflag.FlagSet) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c,
contexts: [{name: c, context: {cluster: c}}],
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]}`), 0o600))
	h := NewOperator(Operator, cell.Invoke(func(in populated) { p = in }))
	flags = populateHive(t, h, "--kubeconfig="+kubeconfig)
	return p, flags
}

func populateHive(t *testing.T, h *hive.Hive, args ...string) *pflag.FlagSet {
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse(args))
	require.NoError(t, h.Populate(hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))))
	return flags
}

// The README has a row for each flag, with its variable and its default.
func TestDocumentedFlags(t *testing.T) {
	readme := documents(t)["README.md"]
	_, flags := populate(t)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == shellFlag { // hidden: it follows --socket
			return
		}
		def := strings.Trim(f.DefValue, "[]")
		if def != "" {
			def = "`" + def + "`"
		}
		row := fmt.Sprintf("| `--%s` | `%s` | %s |", f.Name, EnvironmentName(f.Name), def)
		require.True(t, strings.Contains(readme, row), "README.md has no row that begins with %s", row)
	})
}

// docs/tables.md has a section for each table, with all of its columns in their
// order, and the README has a row.
func TestDocumentedTables(t *testing.T) {
	texts := documents(t)
	documented := map[string][]string{} // columns by table
	var names []string
	for _, line := range strings.Split(texts["docs/tables.md"], "\n") {
		switch cells := strings.Split(line, " | "); {
		case strings.HasPrefix(line, "#"):
			names = strings.Split(strings.TrimLeft(line, "# "), ", ")
		case strings.HasPrefix(line, "| ") && line != "| column | meaning |":
			for _, name := range names {
				documented[name] = append(documented[name], strings.TrimPrefix(cells[0], "| "))
			}
		}
	}
	delete(documented, "Tables") // columns that are the same everywhere
	p, _ := populate(t)
	all := map[string]statedb.TableMeta{}
	for _, table := range p.DB.GetTables(p.DB.ReadTxn()) {
		all[table.Name()] = table
	}
	p, _ = populateOperator(t)
	for _, table := range p.DB.GetTables(p.DB.ReadTxn()) {
		all[table.Name()] = table
	}
	for name, table := range all {
		require.Equal(t, statedb.AnyTable{Meta: table}.TableHeader(), documented[name], "docs/tables.md, %s", name)
		require.True(t, strings.Contains(texts["README.md"], "| `"+name+"` |"), "README.md has no row for table %s", name)
		delete(documented, name)
	}
	require.Empty(t, documented, "tables of docs/tables.md that neither agent nor operator has")
}

var (
	metricDesc = regexp.MustCompile(`fqName: "(sluice_\w+)".*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)
	metricRow  = regexp.MustCompile("(?m)^\\| `(sluice_\\w+)` \\| (\\w+) \\| ([\\w, ]*) \\| .")
)

// docs/metrics.md has each metric of the agent's own once, with its type and labels.
func TestDocumentedMetrics(t *testing.T) {
	documented := map[string]string{}
	types := map[string]string{}
	for _, m := range metricRow.FindAllStringSubmatch(documents(t)["docs/metrics.md"], -1) {
		require.NotContains(t, documented, m[1], "twice")
		documented[m[1]], types[m[1]] = m[3], m[2]
		require.Equal(t, m[2] == "counter", strings.HasSuffix(m[1], "_total"), "%s is a %s", m[1], m[2])
	}
	p, _ := populate(t)
	operator, _ := populateOperator(t)
	descriptions := make(chan *prometheus.Desc)
	go func() {
		p.Registry.Describe(descriptions)
		operator.Registry.Describe(descriptions)
		close(descriptions)
	}()
	labels := map[string]string{}
	for d := range descriptions {
		if m := metricDesc.FindStringSubmatch(d.String()); m != nil {
			constant, _, _ := strings.Cut(m[2], "=") // of at most one, none has more
			all := strings.Split(strings.Trim(m[3]+","+constant, ","), ",")
			labels[m[1]] = strings.Join(all, ", ")
		}
	}
	require.NotEmpty(t, labels)
	require.Equal(t, labels, documented)
	families, err := p.Registry.Gather()
	require.NoError(t, err)
	more, err := operator.Registry.Gather()
	require.NoError(t, err)
	families = append(families, more...)
	for _, family := range families {
		if documented, ok := types[family.GetName()]; ok {
			require.Equal(t, strings.ToLower(family.GetType().String()), documented, family.GetName())
		}
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	require.Empty(t, problems, "conventions of Prometheus")
}

// docs/operations.md says what each reason of the programs means.
func TestDocumentedReasons(t *testing.T) {
	operations := documents(t)["docs/operations.md"]
	for reason := range bpf.ReasonCount {
		if name := reason.String(); !strings.HasPrefix(name, "reason-") {
			require.True(t, strings.Contains(operations, "`"+name+"`"), "docs/operations.md does not have reason %s", name)
		}
	}
}

var (
	// pathInText is a path of the repository, not one of a node.
	pathInText = regexp.MustCompile("`((?:bpf|cmd|deploy|docs|reconcilers|sources|tables|testdata|\\.ci)/[\\w./-]*)`")
	makeTarget = regexp.MustCompile("(?m)(?:`|^    )make ([a-z0-9-]+)")
)

// Paths in the documents are there, and make has the targets.
func TestDocumentedPaths(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	require.NoError(t, err)
	for document, text := range documents(t) {
		for _, m := range pathInText.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join(repository, m[1]))
			require.NoError(t, err, "path in %s", document)
		}
		for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
			require.True(t, strings.Contains(string(makefile), "\n"+m[1]+":"), "%s: make has no target %s", document, m[1])
		}
	}
}

// Each picture was drawn of its source as it is.
func TestPictures(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join(repository, "docs/pictures/*.dot"))
	require.NoError(t, err)
	require.NotEmpty(t, sources)
	for _, source := range sources {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		picture, err := os.ReadFile(strings.TrimSuffix(source, ".dot") + ".svg")
		require.NoError(t, err)
		require.Contains(t, string(picture), fmt.Sprintf("%x", sha256.Sum256(text)), "%s has changed: make pictures", source)
	}
}
