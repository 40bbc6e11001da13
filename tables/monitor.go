// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Monitor is a client that follows new flows. While there is none, the kernel
// does not report them.
type Monitor struct {
	ID      uint64    `json:"id"`                // counts the clients since the agent's start
	Filters string    `json:"filters,omitempty"` // what it wants, as it asked for it; empty for everything
	Since   time.Time `json:"since"`
}

// TableHeader implements [statedb.TableWritable].
func (*Monitor) TableHeader() []string { return []string{"ID", "Filters", "Since"} }

// TableRow implements [statedb.TableWritable].
func (m *Monitor) TableRow() []string {
	return []string{strconv.FormatUint(m.ID, 10), orDash(m.Filters), m.Since.UTC().Format(time.RFC3339)}
}

var (
	monitorIDIndex = statedb.Index[*Monitor, uint64]{
		Name:       "id",
		FromObject: func(m *Monitor) index.KeySet { return index.NewKeySet(index.Uint64(m.ID)) },
		FromKey:    index.Uint64,
		FromString: index.Uint64String,
		Unique:     true,
	}

	// MonitorByID queries a client by its number.
	MonitorByID = monitorIDIndex.Query
)

// NewMonitorTable creates the table of the clients that follow new flows.
func NewMonitorTable(db *statedb.DB) (statedb.RWTable[*Monitor], error) {
	return statedb.NewTable(db, "monitors", monitorIDIndex)
}
