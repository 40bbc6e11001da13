// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"
	"time"
)

// CTGCRun is what one pass of the garbage collection did to one map of
// connections or translations.
type CTGCRun struct {
	ID      uint64    `json:"id"`   // counts the rows since the agent's start
	Pass    uint64    `json:"pass"` // counts the passes: the rows of one share it
	Started time.Time `json:"started"`
	Set     string    `json:"set"`           // of maps: global, or that of a cluster
	Map     string    `json:"map,omitempty"` // empty: the pass failed before the first map
	Method  string    `json:"method,omitempty"`
	Reason  string    `json:"reason"` // why there was a pass

	// Entries.
	Scanned      uint64 `json:"scanned"`
	Expired      uint64 `json:"expired"`      // connections that had expired, removed
	Translations uint64 `json:"translations"` // removed with their connections
	Orphans      uint64 `json:"orphans"`      // translations without connection, removed
	Released     uint64 `json:"released"`     // removed as one of their addresses is gone
	Flushed      uint64 `json:"flushed"`      // removed on request
	Condemned    uint64 `json:"condemned"`    // removed, as another run had begun to
	Kept         uint64 `json:"kept"`         // expired, with time left for replies
	Revived      uint64 `json:"revived"`      // used just when they were to be removed
	Deferred     uint64 `json:"deferred"`     // left to the next pass
	Failed       uint64 `json:"failed"`       // could not be removed
	// removals that an observer was too slow for, of the whole pass
	Lost uint64 `json:"lost"`

	Duration   time.Duration `json:"duration"`
	LongestRun time.Duration `json:"longestRun"` // for which the kernel was busy with it at a stretch
	NextRun    time.Time     `json:"nextRun,omitzero"`
	Error      string        `json:"error,omitempty"`
}

// TableHeader implements [statedb.TableWritable].
func (*CTGCRun) TableHeader() []string {
	return []string{
		"ID", "Set", "Map", "Method", "Reason", "Scanned", "Expired", "Translations", "Orphans",
		"Released", "Flushed",
		"Condemned", "Kept", "Revived", "Deferred", "Failed", "Lost", "Error", "Duration", "LongestRun",
		"Started", "NextRun",
	}
}

// TableRow implements [statedb.TableWritable].
func (r *CTGCRun) TableRow() []string {
	row := []string{strconv.FormatUint(r.ID, 10), r.Set, orDash(r.Map), orDash(r.Method), r.Reason}
	for _, n := range []uint64{
		r.Scanned, r.Expired, r.Translations, r.Orphans, r.Released, r.Flushed, r.Condemned, r.Kept,
		r.Revived, r.Deferred,
		r.Failed, r.Lost,
	} {
		row = append(row, strconv.FormatUint(n, 10))
	}
	next := ""
	if !r.NextRun.IsZero() {
		next = r.NextRun.UTC().Format(time.RFC3339)
	}
	return append(row, orDash(r.Error), r.Duration.Round(time.Microsecond).String(),
		r.LongestRun.Round(time.Microsecond).String(),
		r.Started.UTC().Format(time.RFC3339), orDash(next))
}

var (
	ctGCRunIDIndex = UniqueIndex("id", Uint64Keys, func(r *CTGCRun) uint64 { return r.ID })

	ctGCRunMapIndex = Index("map", StringKeys, func(r *CTGCRun) string { return r.Map })

	// CTGCRunByID queries a row by its number.
	CTGCRunByID = ctGCRunIDIndex.Query

	// CTGCRunsByMap queries the rows of a map.
	CTGCRunsByMap = ctGCRunMapIndex.Query
)

// NewCTGCRunTable creates the table of passes of the garbage collection.
var NewCTGCRunTable = Declare("ct-gc-runs", ctGCRunIDIndex, ctGCRunMapIndex)
