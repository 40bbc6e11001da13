// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// AuditResult is how a map differed from what was written to it.
type AuditResult struct {
	Missing int // entries that were gone
	Changed int // entries with another value
	Foreign int // entries that nobody here had written
	Left    int // of these, could not be repaired yet
	Example string
}

// Clean reports whether there was no difference.
func (r AuditResult) Clean() bool { return r.Missing+r.Changed+r.Foreign == 0 }

func (r AuditResult) String() string {
	if r.Clean() {
		return "clean"
	}
	s := fmt.Sprintf("repaired %d missing, %d changed, %d foreign", r.Missing, r.Changed, r.Foreign)
	if r.Left > 0 {
		s += fmt.Sprintf(", %d left", r.Left)
	}
	return s
}

type auditReply struct {
	result AuditResult
	err    error
}

func (l *loop[Row, K, V]) scheduleAudit(now time.Time) {
	if interval := l.report.interval; interval > 0 {
		l.nextScan = now.Add(interval)
	}
}

// audit reads the map back, corrects the mirror where it differs, and makes a
// round that repairs the map in the order in which it would be written.
func (l *loop[Row, K, V]) audit(now time.Time) (result AuditResult, err error) {
	r := l.report
	l.scheduleAudit(now)
	defer func() {
		r.repaired, r.auditErr = err == nil && !result.Clean(), err
		r.lastAudit = result.String()
		if err != nil {
			r.lastAudit = "failed: " + err.Error()
		}
		r.touch(now)
	}()
	entries, err := l.Map.Dump()
	if err != nil {
		return result, fmt.Errorf("audit map %s: %w", l.name, err)
	}
	actual := make(map[K]V, len(entries))
	for _, e := range entries {
		actual[e.Key] = e.Value
	}
	damaged, result := l.differences(l.db.ReadTxn(), actual)
	r.metrics.audited(result)
	if result.Clean() {
		return result, nil
	}
	l.log.Warn("Map differs from what was written to it", "missing", result.Missing, "changed", result.Changed,
		"foreign", result.Foreign, "example", result.Example)
	if err := l.repair(damaged, actual, now); err != nil {
		return result, err
	}
	for key := range damaged {
		if _, ok := l.items.byKey[key]; ok {
			result.Left++
		}
	}
	return result, nil
}

// differences compares what the map holds with the mirror.
func (l *loop[Row, K, V]) differences(txn statedb.ReadTxn, actual map[K]V) (damaged map[K]struct{}, result AuditResult) {
	damaged = map[K]struct{}{}
	found := func(n *int, key K, what string) {
		*n++
		damaged[key] = struct{}{}
		if result.Example == "" {
			result.Example = fmt.Sprintf("%v is %s", key, what)
		}
	}
	known := 0
	for entry := range l.Entries.All(txn) {
		value, ok := actual[entry.Key]
		switch {
		case !ok:
			found(&result.Missing, entry.Key, "missing")
			continue
		case value != entry.Value:
			found(&result.Changed, entry.Key, fmt.Sprintf("%v instead of %v", value, entry.Value))
		}
		known++
	}
	if known == len(actual) {
		return damaged, result
	}
	for key, value := range actual {
		if _, _, ok := l.Entries.Get(txn, tables.MapEntryByKey[K, V](key)); !ok {
			found(&result.Foreign, key, fmt.Sprintf("foreign: %v", value))
		}
	}
	return damaged, result
}

// repair corrects the mirror by the map, and then the map by what is desired.
func (l *loop[Row, K, V]) repair(damaged map[K]struct{}, actual map[K]V, now time.Time) error {
	wtxn := l.db.WriteTxn(l.Entries)
	defer wtxn.Abort()
	for key := range damaged {
		value, ok := actual[key]
		entry := &tables.MapEntry[K, V]{Key: key, Value: value, Wanted: tables.WantedOther}
		var err error
		if ok {
			_, _, err = l.Entries.Insert(wtxn, entry)
		} else {
			_, _, err = l.Entries.Delete(wtxn, entry)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", l.Entries.Name(), err)
		}
	}
	txn := wtxn.Commit()

	is := func(key K) bool { _, ok := damaged[key]; return ok }
	l.find(txn, is)
	for key := range damaged {
		it := l.items.get(key)
		it.attempts = 0
		l.items.schedule(it, now)
	}
	_, _, err := l.step(now)
	return err
}
