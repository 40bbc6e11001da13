// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// dashboard has the fields of a Grafana dashboard that are checked.
type dashboard struct {
	UID        string  `json:"uid"`
	Title      string  `json:"title"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID          int      `json:"id"`
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	GridPos     gridPos  `json:"gridPos"`
	Targets     []target `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

type target struct {
	RefID      string `json:"refId"`
	Expr       string `json:"expr"`
	Datasource struct {
		UID string `json:"uid"`
	} `json:"datasource"`
}

type gridPos struct{ X, Y, W, H int }

func (g gridPos) overlaps(o gridPos) bool {
	return g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H
}

// variables are what Grafana puts in the place of the dashboard's variables.
var variables = strings.NewReplacer("$__rate_interval", "1m", "$node", ".*")

func TestDashboard(t *testing.T) {
	var d dashboard
	require.NoError(t, json.Unmarshal([]byte(read(t, "deploy/monitoring/dashboard.json")), &d))
	require.Equal(t, "sluice", d.UID)
	known := metrics(t)
	for _, v := range d.Templating.List {
		if name, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			name, _, _ = strings.Cut(name, ",")
			require.Contains(t, known, name)
		}
	}
	ids, asked := map[int]bool{}, 0
	for i, p := range d.Panels {
		require.False(t, ids[p.ID], "panel %q has the number of another", p.Title)
		ids[p.ID] = true
		require.NotEmpty(t, p.Title)
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for _, other := range d.Panels[:i] {
			require.False(t, p.GridPos.overlaps(other.GridPos), "%q lies on %q", p.Title, other.Title)
		}
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.Description, p.Title)
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, q := range p.Targets {
			require.Equal(t, "${datasource}", q.Datasource.UID, p.Title)
			require.Contains(t, q.Expr, "$node", "%q can be narrowed to a node", p.Title)
			checkExpression(t, variables.Replace(q.Expr), known)
			asked++
		}
	}
	require.NotZero(t, asked)
}
