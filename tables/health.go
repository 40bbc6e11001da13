// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb/index"
)

// Health is what a part of the agent last said about itself.
type Health struct {
	ID      string     `json:"id"` // module and scopes in it, joined by dots
	Level   cell.Level `json:"level"`
	Message string     `json:"message"`
	Error   string     `json:"error,omitempty"`
	Since   time.Time  `json:"since"` // when the level was first reported
	Count   int        `json:"count"` // reports of this level since then, as of this row
	// Ended says that a job failed for good: nothing but a restart of the agent
	// makes it go on.
	Ended bool `json:"ended,omitempty"`
}

// TableHeader implements [statedb.TableWritable].
func (*Health) TableHeader() []string {
	return []string{"Module", "Level", "Message", "Error", "Count", "Since"}
}

// TableRow implements [statedb.TableWritable].
func (h *Health) TableRow() []string {
	return []string{
		h.ID, string(h.Level), orDash(h.Message), orDash(h.Error), strconv.Itoa(h.Count), h.Since.UTC().Format(time.RFC3339),
	}
}

var (
	healthIDIndex = UniqueIndex("id", StringKeys, func(h *Health) string { return h.ID })

	healthLevelIndex = Index("level", KeysOf(levelKey, index.FromString),
		func(h *Health) cell.Level { return h.Level })

	// HealthByID queries what one scope of a module reported.
	HealthByID = healthIDIndex.Query
	// HealthByLevel queries the reports of a level, such as [cell.StatusDegraded].
	HealthByLevel = healthLevelIndex.Query
)

func levelKey(l cell.Level) index.Key { return index.String(string(l)) }

// NewHealthTable creates the table of the agent's health.
var NewHealthTable = Declare("health", healthIDIndex, healthLevelIndex)
