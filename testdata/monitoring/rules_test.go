// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

// repository is the path of its root from here.
const repository = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, path))
	require.NoError(t, err)
	return string(text)
}

// alerts are the rules of deploy/monitoring/rules.yaml by name.
func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.Parse([]byte(read(t, "deploy/monitoring/rules.yaml")), false, model.UTF8Validation)
	require.Empty(t, errs)
	byName := map[string]rulefmt.Rule{}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			require.NotContains(t, byName, rule.Alert, "twice")
			byName[rule.Alert] = rule
		}
	}
	return byName
}

var documentedMetric = regexp.MustCompile("(?m)^\\| `(sluice_\\w+)` \\| (\\w+) \\| ([\\w, ]*) \\|")

// metric is what docs/metrics.md says of one, which the agent's tests hold it to.
type metric struct {
	kind   string
	labels []string
}

// metrics are the time series that the agent has, by name.
func metrics(t *testing.T) map[string]metric {
	t.Helper()
	byName := map[string]metric{}
	for _, m := range documentedMetric.FindAllStringSubmatch(read(t, "docs/metrics.md"), -1) {
		name, kind := m[1], m[2]
		own := []string{"node", "pod", "instance", "job", "namespace"} // those that Prometheus adds
		if m[3] != "" {
			own = append(own, strings.Split(m[3], ", ")...)
		}
		if kind != "histogram" {
			byName[name] = metric{kind, own}
			continue
		}
		byName[name+"_bucket"] = metric{"counter", append(own, "le")}
		byName[name+"_sum"], byName[name+"_count"] = metric{"counter", own}, metric{"counter", own}
	}
	require.NotEmpty(t, byName)
	return byName
}

// ofProcess are series of client_golang's collectors.
var ofProcess = regexp.MustCompile(`^(go|process)_\w+$`)

// checkExpression parses an expression, and wants the metrics and labels that it
// asks for to exist, rates to be of counters, and counters to be in rates.
func checkExpression(t *testing.T, text string, known map[string]metric) {
	t.Helper()
	expr, err := parser.ParseExpr(text)
	require.NoError(t, err, text)
	selectors := 0
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok || ofProcess.MatchString(selector.Name) {
			return nil
		}
		selectors++
		if selector.Name == "up" { // Prometheus' own
			return nil
		}
		m, ok := known[selector.Name]
		require.True(t, ok, "no metric %q: %s", selector.Name, text)
		for _, matcher := range selector.LabelMatchers {
			if matcher.Name != labels.MetricName {
				require.Contains(t, m.labels, matcher.Name, "%s: %s", selector.Name, text)
			}
		}
		require.Equal(t, m.kind == "counter", inRate(path), "%s is a %s: %s", selector.Name, m.kind, text)
		return nil
	})
	if !strings.Contains(text, "process_") && !strings.Contains(text, "go_") {
		require.NotZero(t, selectors, text)
	}
}

// inRate reports whether what is above a selector takes its rate.
func inRate(path []parser.Node) bool {
	for _, node := range path {
		if call, ok := node.(*parser.Call); ok {
			switch call.Func.Name {
			case "rate", "irate", "increase":
				return true
			}
		}
	}
	return false
}

func TestRules(t *testing.T) {
	document, known := read(t, "docs/metrics.md"), metrics(t)
	for name, rule := range alerts(t) {
		t.Run(name, func(t *testing.T) {
			require.True(t, strings.HasPrefix(name, "Sluice"))
			checkExpression(t, rule.Expr, known)
			require.Contains(t, []string{"critical", "warning", "info"}, rule.Labels["severity"])
			require.NotEmpty(t, rule.Annotations["summary"])
			require.NotEmpty(t, rule.Annotations["description"])
			require.Equal(t, "https://github.com/sluice-net/sluice/blob/main/docs/metrics.md#"+strings.ToLower(name), rule.Annotations["runbook_url"])
			require.Contains(t, document, "\n### "+name+"\n")
		})
	}
}
