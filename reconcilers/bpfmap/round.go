// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// step makes one round: everything that is pending now is written. It returns
// the channels that close when the tables have more: of the opener none while
// nothing waits for it.
func (l *loop[Row, K, V]) step(now time.Time) (desired, opens <-chan struct{}, err error) {
	l.taken.Lock()
	defer l.taken.Unlock()
	l.rounds++
	txn := l.db.ReadTxn()
	work, desired := l.changed(txn)
	if l.Opener != nil {
		var woken []*item[Row, K, V]
		woken, opens = l.woken(txn)
		work = append(work, woken...)
	}
	l.begun = true
	work = append(work, l.due(now)...)
	if len(work) > 0 {
		err = l.reconcile(txn, l.withTied(work), now)
	}
	if len(l.items.waiting) == 0 {
		opens = nil
	}
	return desired, opens, err
}

// take puts an item on the round's list unless it is there.
func (l *loop[Row, K, V]) take(work []*item[Row, K, V], it *item[Row, K, V]) []*item[Row, K, V] {
	if it.round == l.rounds {
		return work
	}
	it.round = l.rounds
	l.items.park(it)
	return append(work, it)
}

// changed returns the items of rows that others have changed.
func (l *loop[Row, K, V]) changed(txn statedb.ReadTxn) (work []*item[Row, K, V], watch <-chan struct{}) {
	revision := l.Desired.Revision(txn)
	if l.watch != nil && revision != l.revision {
		<-l.watch // a commit is in snapshots a moment before it closes channels: Next tells nothing until then
	}
	changes, _ := l.desired.Next(txn)
	var last statedb.Revision
	for change, revision := range changes {
		last = revision
		if !change.Deleted && l.own.contains(revision) {
			continue
		}
		it := l.items.get(l.key(change.Object))
		if change.Deleted && it.round == l.rounds && it.wanted {
			continue // another row has come to have the key
		}
		it.row, it.wanted, it.revision, it.attempts, it.since = change.Object, !change.Deleted, revision, 0, time.Time{}
		work = l.take(work, it)
	}
	l.own.forget(last)
	// The channel was a closed one, to ask for what is left: nothing.
	_, l.watch = l.desired.Next(txn)
	l.revision = revision
	return work, l.watch
}

// woken returns the items that wait for what has changed.
func (l *loop[Row, K, V]) woken(txn statedb.ReadTxn) (work []*item[Row, K, V], watch <-chan struct{}) {
	watch = l.Opener.changes(txn, func(waitFor any) {
		first := len(work)
		for it := range l.items.waiting[waitFor] {
			it.since = time.Time{}
			work = l.take(work, it)
		}
		slices.SortFunc(work[first:], func(a, b *item[Row, K, V]) int { return cmp.Compare(a.seq, b.seq) })
	})
	return work, watch
}

// due returns the items that it is time to try again.
func (l *loop[Row, K, V]) due(now time.Time) (work []*item[Row, K, V]) {
	for len(l.items.timers) > 0 && !l.items.timers[0].due.After(now) {
		it := l.items.timers[0]
		l.items.park(it)
		work = l.take(work, it)
	}
	return work
}

// withTied adds the items that must not be left out of a round with these: what
// is tied to them by the order of writes, and to that, and so on.
func (l *loop[Row, K, V]) withTied(work []*item[Row, K, V]) []*item[Row, K, V] {
	if l.Plan.Group == nil || len(work) == len(l.items.byKey) {
		return work
	}
	keys := make([]K, 0, len(l.items.byKey))
	rest := make([]*item[Row, K, V], 0, len(l.items.byKey)-len(work))
	for key, it := range l.items.byKey {
		keys = append(keys, key)
		if it.round != l.rounds {
			rest = append(rest, it)
		}
	}
	slices.SortFunc(rest, func(a, b *item[Row, K, V]) int { return cmp.Compare(a.seq, b.seq) })
	group := l.Plan.Group(keys)
	for _, it := range work {
		group.Add(it.key)
	}
	for found := true; found; {
		found = false
		rest = slices.DeleteFunc(rest, func(it *item[Row, K, V]) bool {
			if !group.Ties(it.key) {
				return false
			}
			group.Add(it.key)
			work = l.take(work, it)
			found = true
			return true
		})
	}
	return work
}

// reconcile makes the map hold what is desired of the items' keys, as far as it
// is possible, and says in the tables what came of it.
func (l *loop[Row, K, V]) reconcile(txn statedb.ReadTxn, work []*item[Row, K, V], now time.Time) error {
	changes, changing := l.compare(txn, work)
	if len(changes) == 0 {
		err := l.commit(l.judge(work, nil, now))
		l.report.touch(now)
		return err
	}
	if !l.Independent {
		// What a gate sees stays true until what it let through is in the
		// mirror, where other maps' gates see it.
		l.order.Lock()
		defer l.order.Unlock()
		var err error
		if txn, err = l.announce(changes, changing); err != nil {
			return err
		}
	}
	if len(l.Held) > 0 {
		held := l.db.WriteTxn(l.Held...)
		defer held.Abort()
		txn = l.db.ReadTxn()
	}
	x := l.execute(txn, changes, changing)
	verdicts := l.judge(work, x, now)
	if x.deleted > 0 {
		l.items.giveRoom(x.deleted, now)
	}
	if err := l.commit(verdicts); err != nil {
		return err
	}
	l.report.touch(now)
	if len(x.extra) > 0 {
		return l.adopt(x.extra, now)
	}
	return nil
}

// compare returns what has to change, and the items in the order of the changes.
func (l *loop[Row, K, V]) compare(txn statedb.ReadTxn, work []*item[Row, K, V]) (changes []Change[K, V], changing []*item[Row, K, V]) {
	changes, changing = make([]Change[K, V], 0, len(work)), make([]*item[Row, K, V], 0, len(work))
	for _, it := range work {
		it.change = -1
		c := Change[K, V]{Key: it.key, index: len(changes)}
		it.entry, _, _ = l.Entries.Get(txn, tables.MapEntryByKey[K, V](it.key))
		if it.entry != nil {
			c.Old = &it.entry.Value
		}
		if it.wanted {
			value := l.MapValue(it.row)
			c.New = &value
		}
		if c.Old == nil && c.New == nil || c.Old != nil && c.New != nil && *c.Old == *c.New {
			continue
		}
		it.change = c.index
		changes, changing = append(changes, c), append(changing, it)
	}
	return changes, changing
}

// announce says in the mirror which entries are about to change or to go, so
// that other maps' gates see it before it happens. It returns a snapshot in
// which that is so, for the gates of this one.
func (l *loop[Row, K, V]) announce(changes []Change[K, V], changing []*item[Row, K, V]) (statedb.ReadTxn, error) {
	var wtxn statedb.WriteTxn
	for i, c := range changes {
		wanted := tables.WantedOther
		if c.New == nil {
			wanted = tables.WantedAbsent
		}
		it := changing[i]
		if it.entry == nil || it.entry.Wanted == wanted {
			continue
		}
		if wtxn == nil {
			wtxn = l.db.WriteTxn(l.Entries)
			defer wtxn.Abort()
		}
		entry := *it.entry
		entry.Wanted = wanted
		if _, _, err := l.Entries.Insert(wtxn, &entry); err != nil {
			return nil, fmt.Errorf("write %s: %w", l.Entries.Name(), err)
		}
		it.entry = &entry
	}
	if wtxn != nil {
		return wtxn.Commit(), nil
	}
	return l.db.ReadTxn(), nil
}

// squeezeAfter is how many attempts an entry makes before others are deleted
// for it before their time.
const squeezeAfter = 4

// execute writes the changes to the map.
func (l *loop[Row, K, V]) execute(txn statedb.ReadTxn, changes []Change[K, V], changing []*item[Row, K, V]) *execution[K, V] {
	x := &execution[K, V]{
		target:   l.Map,
		plan:     l.Plan,
		vacate:   l.Vacate,
		count:    l.report.count,
		changes:  changes,
		outcomes: make([]outcome[V], len(changes)),
		before: func(key K) (value V, found bool) {
			entry, _, found := l.Entries.Get(txn, tables.MapEntryByKey[K, V](key))
			if found {
				value = entry.Value
			}
			return value, found
		},
	}
	if l.Gate != nil {
		x.gate = l.Gate(txn)
	}
	x.all = func(yield func(K, V) bool) {
		for entry := range l.Entries.All(txn) {
			if !yield(entry.Key, entry.Value) {
				return
			}
		}
	}
	for i := range changes {
		x.outcomes[i].kernel = changes[i].Old
	}
	x.run(l.Plan.Order(changes, x.before))
	x.squeeze(func(change int) bool { return changing[change].attempts >= squeezeAfter })
	if x.squeezed > 0 {
		l.report.metrics.unordered.Add(float64(x.squeezed))
		l.log.Warn("Deleted entries before writing what replaces them, as the map is full", "entries", x.squeezed)
	}
	return x
}

// adopt has entries that were written for no item made as desired again.
func (l *loop[Row, K, V]) adopt(entries map[K]V, now time.Time) error {
	wtxn := l.db.WriteTxn(l.Entries)
	defer wtxn.Abort()
	for key, value := range entries {
		entry := &tables.MapEntry[K, V]{Key: key, Value: value, Wanted: tables.WantedOther}
		if _, _, err := l.Entries.Insert(wtxn, entry); err != nil {
			return err
		}
	}
	txn := wtxn.Commit()
	is := func(key K) bool { _, ok := entries[key]; return ok }
	for _, it := range l.find(txn, is) {
		l.items.schedule(it, now)
	}
	return nil
}

// find returns items of some keys, with the rows that are desired of them.
// It looks at all rows, as nothing leads from a map's key to them.
func (l *loop[Row, K, V]) find(txn statedb.ReadTxn, is func(K) bool) (found []*item[Row, K, V]) {
	for row, revision := range l.Desired.All(txn) {
		if key := l.key(row); is(key) {
			it := l.items.get(key)
			it.row, it.wanted, it.revision = row, true, revision
			found = append(found, it)
		}
	}
	return found
}
