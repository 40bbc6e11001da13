// SPDX-License-Identifier: Apache-2.0

package tables

import "strconv"

// States of an [ObjectSource] of an API server.
const (
	SourceSyncing = "syncing" // not listed yet
	SourceSynced  = "synced"  // listed, and watched since
	SourceAbsent  = "absent"  // not served, so there are none
	SourceBroken  = "broken"  // cannot be listed or watched; what was known stays
	SourceKept    = "kept"    // the CRD is being deleted, or is gone; what was known stays
)

// ObjectSource is a file of the files source, or with the kubernetes source one
// kind of object: where rows of the base tables come from, and how that goes.
type ObjectSource struct {
	Source  string `json:"source"` // path of the file, or resource.group
	State   string `json:"state"`  // synced, syncing, absent, broken, kept
	Objects int    `json:"objects"`
	Error   string `json:"error,omitempty"` // last problem; the last good objects stay
}

// TableHeader implements [statedb.TableWritable].
func (*ObjectSource) TableHeader() []string { return []string{"Source", "State", "Objects", "Error"} }

// TableRow implements [statedb.TableWritable].
func (m *ObjectSource) TableRow() []string {
	return []string{m.Source, m.State, strconv.Itoa(m.Objects), orDash(m.Error)}
}

var (
	objectSourceNameIndex = UniqueIndex("source", StringKeys,
		func(m *ObjectSource) string { return m.Source })

	// ObjectSourceByName queries a source of objects by its name.
	ObjectSourceByName = objectSourceNameIndex.Query
)

// NewObjectSourceTable creates the table of where objects come from.
var NewObjectSourceTable = Declare("object-sources", objectSourceNameIndex)
