// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"strconv"

	"github.com/sluice-net/sluice/bpf"
)

// TypeLRU is the type of the maps that the programs write: of connections,
// translations and fragments. When one is full, the entry that was not used for
// longest makes room. The agent has none of this type of its own.
const TypeLRU bpf.Type = "lru-hash"

// BPFMap says how a BPF map is doing. Its numbers are those of a moment ago.
type BPFMap struct {
	Name       string   `json:"name"`
	Type       bpf.Type `json:"type"`
	Backend    string   `json:"backend"` // kernel or memory
	MaxEntries uint32   `json:"maxEntries"`
	Entries    int      `json:"entries"`

	// Entries and removals that the map does not have yet: about to be written
	// or held back behind another, waiting for another map, and failed.
	Pending int `json:"pending"`
	Waiting int `json:"waiting"`
	Failed  int `json:"failed"`

	// Entries written and deleted since the agent's start.
	Writes  uint64 `json:"writes"`
	Deletes uint64 `json:"deletes"`

	LastAudit string `json:"lastAudit"` // what the last comparison with the map itself gave
}

// PressurePercent returns how full the map is, in percent.
func (m *BPFMap) PressurePercent() float64 {
	if m.MaxEntries == 0 {
		return 0
	}
	return 100 * float64(m.Entries) / float64(m.MaxEntries)
}

// TableHeader implements [statedb.TableWritable].
func (*BPFMap) TableHeader() []string {
	return []string{"Name", "Type", "Backend", "Entries", "MaxEntries", "Pressure", "Pending", "Waiting", "Failed", "Writes", "Deletes", "LastAudit"}
}

// TableRow implements [statedb.TableWritable].
func (m *BPFMap) TableRow() []string {
	return []string{
		m.Name, string(m.Type), m.Backend, strconv.Itoa(m.Entries), strconv.FormatUint(uint64(m.MaxEntries), 10),
		fmt.Sprintf("%.1f%%", m.PressurePercent()), strconv.Itoa(m.Pending), strconv.Itoa(m.Waiting), strconv.Itoa(m.Failed),
		strconv.FormatUint(m.Writes, 10), strconv.FormatUint(m.Deletes, 10), orDash(m.LastAudit),
	}
}

var (
	bpfMapNameIndex = UniqueIndex("name", StringKeys, func(m *BPFMap) string { return m.Name })

	// BPFMapByName queries a map by its name.
	BPFMapByName = bpfMapNameIndex.Query
)

// NewBPFMapTable creates the table of BPF maps. It is initialized when each map
// has been made to agree with what is desired of it a first time.
var NewBPFMapTable = Declare("bpf-maps", bpfMapNameIndex)
