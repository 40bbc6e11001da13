// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"
	"time"
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
	monitorIDIndex = UniqueIndex("id", Uint64Keys, func(m *Monitor) uint64 { return m.ID })

	// MonitorByID queries a client by its number.
	MonitorByID = monitorIDIndex.Query
)

// NewMonitorTable creates the table of the clients that follow new flows.
var NewMonitorTable = Declare("monitors", monitorIDIndex)
