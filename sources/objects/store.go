// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"reflect"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Store writes the rows of one kind of object to their table. Rows that are
// there already are not written again. It is for one user at a time.
type Store struct {
	// Table is the table that a transaction must have locked.
	Table interface {
		statedb.TableMeta
		RegisterInitializer(txn statedb.WriteTxn, name string) func(statedb.WriteTxn)
	}

	put     func(statedb.WriteTxn, *Object) error
	replace func(statedb.WriteTxn, []*Object) error
	remove  func(statedb.WriteTxn, tables.Name) error
	rows    func() int
}

// Rows is the number of rows that the store has written and not deleted.
func (s *Store) Rows() int { return s.rows() }

// Put makes the rows of an object those that it has now.
func (s *Store) Put(txn statedb.WriteTxn, o *Object) error {
	if o.Err != nil {
		return nil
	}
	return s.put(txn, o)
}

// Replace makes the rows of the kind those of these objects. Of two objects with
// the same name the first counts.
func (s *Store) Replace(txn statedb.WriteTxn, objects []*Object) error {
	return s.replace(txn, objects)
}

// Delete removes the rows of an object.
func (s *Store) Delete(txn statedb.WriteTxn, name tables.Name) error { return s.remove(txn, name) }

// writer is a [Store] for rows of one type. The objects of two kinds may share a
// table: each then knows its own rows.
type writer[Row any] struct {
	table statedb.RWTable[Row]
	equal func(a, b Row) bool                  // nil: as all fields are
	owned func(tables.Name) statedb.Query[Row] // the rows of one object
	mine  func(Row) bool                       // whether a row is of this kind; nil if all are
	count int

	// complete returns a row with what other tables say of it; nil if none does.
	complete func(statedb.ReadTxn, Row) Row
}

func (w *writer[Row]) store() *Store {
	if w.equal == nil {
		w.equal = func(a, b Row) bool { return reflect.DeepEqual(a, b) }
	}
	return &Store{Table: w.table, put: w.put, replace: w.replace, remove: w.remove, rows: func() int { return w.count }}
}

func (w *writer[Row]) put(txn statedb.WriteTxn, o *Object) error {
	for _, row := range o.rows {
		if err := w.insert(txn, row.(Row)); err != nil {
			return err
		}
	}
	for old := range w.table.List(txn, w.owned(o.Name)) {
		if w.contains(o.rows, old) {
			continue
		}
		if err := w.delete(txn, old); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer[Row]) contains(rows []any, old Row) bool {
	primary := w.table.PrimaryIndexer()
	key := primary.ObjectToKey(old)
	for _, row := range rows {
		if key.Equal(primary.ObjectToKey(row.(Row))) {
			return true
		}
	}
	return false
}

// insert writes a row unless the very same is there.
func (w *writer[Row]) insert(txn statedb.WriteTxn, row Row) error {
	if w.complete != nil {
		row = w.complete(txn, row)
	}
	old, _, found := w.table.Get(txn, w.table.PrimaryIndexer().QueryFromObject(row))
	if found && w.equal(old, row) {
		return nil
	}
	_, hadOld, err := w.table.Insert(txn, row)
	if !hadOld {
		w.count++
	}
	return err
}

func (w *writer[Row]) delete(txn statedb.WriteTxn, row Row) error {
	_, hadOld, err := w.table.Delete(txn, row)
	if hadOld {
		w.count--
	}
	return err
}

func (w *writer[Row]) replace(txn statedb.WriteTxn, objects []*Object) error {
	primary := w.table.PrimaryIndexer()
	keep := make(map[string]struct{}, len(objects))
	for _, o := range objects {
		for _, row := range o.rows {
			key := string(primary.ObjectToKey(row.(Row)))
			if _, repeated := keep[key]; repeated {
				continue
			}
			keep[key] = struct{}{}
			if err := w.insert(txn, row.(Row)); err != nil {
				return err
			}
		}
	}
	for old := range w.table.All(txn) {
		if w.mine != nil && !w.mine(old) {
			continue
		}
		if _, found := keep[string(primary.ObjectToKey(old))]; found {
			continue
		}
		if err := w.delete(txn, old); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer[Row]) remove(txn statedb.WriteTxn, name tables.Name) error {
	for old := range w.table.List(txn, w.owned(name)) {
		if err := w.delete(txn, old); err != nil {
			return err
		}
	}
	return nil
}
