// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/tables"
)

// maxRows bounds the table of passes.
const maxRows = 256

// report is what is to be told of one pass.
type report struct {
	set            *set
	reason         string
	started, ended time.Time
	passes         []gc.Pass
	lost           uint64 // removals that observers were too slow for
	err            error
}

// failedAt reports whether the pass ended with an error at the map of a number.
func (r *report) failedAt(i int) bool { return r.err != nil && i >= len(r.passes)-1 }

func (r *report) outcome(i int) string {
	if r.failedAt(i) {
		return "failed"
	}
	return "done"
}

// reporter tells how it goes: by tables, metrics and health.
type reporter struct {
	log     *slog.Logger
	db      *statedb.DB
	runs    statedb.RWTable[*tables.CTGCRun]
	maps    func(...tables.BPFMap) error // writes rows of bpf-maps, unless they are there
	unshow  func(names ...string) error  // removes them
	metrics *metrics
	health  cell.Health
	event   func(message string) // makes an Event about the Node, nil without an API server
	wasFull bool

	rows, passes uint64 // written and made since the start
}

// show shows how full the maps of a set are.
func (r *reporter) show(s *set, entries map[string]int) error {
	rows := make([]tables.BPFMap, 0, len(entries))
	for name, n := range entries {
		rows = append(rows, mapRow(s.nameOf(name), n, s.sizes[name]))
	}
	return r.maps(rows...)
}

// hide ends that maps are shown which are in no set any more.
func (r *reporter) hide(before, now []*set) error {
	there := map[string]bool{}
	for _, s := range now {
		there[s.name] = true
		for name := range s.sizes {
			there[s.nameOf(name)] = true
		}
	}
	var gone []string
	for _, s := range before {
		for name := range s.sizes {
			if name = s.nameOf(name); !there[name] {
				gone = append(gone, name)
			}
		}
		if !there[s.name] {
			r.metrics.interval.DeleteLabelValues(s.name)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return r.unshow(gone...)
}

func mapRow(name string, entries int, size uint32) tables.BPFMap {
	return tables.BPFMap{Name: name, Type: tables.TypeLRU, Backend: "kernel", Entries: entries, MaxEntries: size}
}

// passed tells of a pass.
func (r *reporter) passed(p *report) {
	r.metrics.passed(p)
	if p.set.name == globalSet && p.err == nil {
		r.metrics.ports.show(p.set.collector.Fullest())
	}
	if err := r.write(p); err != nil {
		r.log.Error("Pass is not in the table", "error", err)
	}
	if p.err != nil {
		r.log.Warn("Pass failed", "set", p.set.name, "reason", p.reason, "error", p.err)
	}
}

// write adds rows of a pass to the table, and removes the oldest.
func (r *reporter) write(p *report) error {
	r.passes++
	wtxn := r.db.WriteTxn(r.runs)
	defer wtxn.Abort()
	for _, row := range r.rowsOf(p) {
		r.rows++
		row.ID = r.rows
		if _, _, err := r.runs.Insert(wtxn, row); err != nil {
			return err
		}
		if old, _, found := r.runs.Get(wtxn, tables.CTGCRunByID(r.rows-maxRows)); found {
			if _, _, err := r.runs.Delete(wtxn, old); err != nil {
				return err
			}
		}
	}
	wtxn.Commit()
	return nil
}

// rowsOf returns a row for each map that has had entries: maps of a family that
// the node does not use would take half of the table. The one at which the pass
// failed, and no other, has the error.
func (r *reporter) rowsOf(p *report) (rows []*tables.CTGCRun) {
	base := tables.CTGCRun{
		Pass: r.passes, Started: p.started.UTC(), Set: p.set.name, Reason: p.reason, Lost: p.lost,
		NextRun: p.set.schedule.next().UTC(),
	}
	add := func(m *gc.Pass) {
		row := base
		row.Map, row.Method = p.set.nameOf(m.Map), string(m.Method)
		row.Scanned, row.Expired, row.Translations, row.Orphans = m.Scanned, m.Expired, m.Translations, m.Orphans
		row.Released, row.Flushed, row.Condemned = m.Released, m.Flushed, m.Condemned
		row.Kept, row.Revived, row.Deferred, row.Failed = m.Kept, m.Revived, m.Deferred, m.Failed
		row.Duration, row.LongestRun = m.Duration, m.LongestRun
		rows = append(rows, &row)
	}
	for i := range p.passes {
		if p.passes[i].Scanned+p.passes[i].Removed() > 0 || p.failedAt(i) {
			add(&p.passes[i])
		}
	}
	if len(rows) == 0 {
		add(&gc.Pass{Duration: p.ended.Sub(p.started)})
		rows[0].Map = ""
	}
	if p.err != nil {
		rows[len(rows)-1].Error = p.err.Error()
	}
	return rows
}

// reportHealth says what passes are made, or what is wrong.
func (r *reporter) reportHealth(sets []*set, unasked bool, unseen error) {
	failures, short := []error{unseen}, []error(nil)
	for _, s := range sets {
		short = append(short, s.short)
		if s.failure != nil {
			failures = append(failures, fmt.Errorf("last pass through the %s maps: %w", s.name, s.failure))
		}
		failures = append(failures, s.uncounted)
		r.metrics.interval.WithLabelValues(s.name).Set(s.schedule.interval.Seconds())
	}
	if err := errors.Join(failures...); err != nil {
		r.health.Degraded("Connections that have ended may stay", err)
		return
	}
	err := errors.Join(short...)
	if err != nil && !r.wasFull && r.event != nil {
		r.event(err.Error())
	}
	r.wasFull = err != nil
	if err != nil {
		r.health.Degraded("There is little room left for connections", err)
		return
	}
	r.health.OK(message(sets, unasked))
}

func message(sets []*set, unasked bool) string {
	if !unasked {
		return "Waiting for the endpoints to be known"
	}
	text := ""
	for _, s := range sets {
		text += fmt.Sprintf("%s maps: at least %s between passes; ", s.name, s.schedule.interval)
	}
	return text[:len(text)-len("; ")]
}

// released counts addresses that no pod had any more, and those that another
// had taken meanwhile.
func (r *reporter) released(gone, taken int) {
	r.metrics.released.WithLabelValues("released").Add(float64(gone))
	r.metrics.released.WithLabelValues("taken").Add(float64(taken))
}
