// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"iter"
	"reflect"

	"github.com/cilium/statedb"
)

// change is one change of a table whose row type is not known here. It has the
// JSON of StateDB's own.
type change = statedb.Change[any]

// changeIterator follows a table whose row type is not known here. StateDB has
// the same for its own handler only, and without a way to close it, so the
// typed methods of the table are called by reflection.
type changeIterator struct{ typed reflect.Value } // a statedb.ChangeIterator[Row]

func newChangeIterator(db *statedb.DB, meta statedb.TableMeta) (*changeIterator, error) {
	method := reflect.ValueOf(meta).MethodByName("Changes")
	if !method.IsValid() {
		return nil, fmt.Errorf("table %s has no method Changes", meta.Name())
	}
	wtxn := db.WriteTxn(meta)
	defer wtxn.Abort()
	out := method.Call([]reflect.Value{reflect.ValueOf(wtxn)})
	if err, _ := out[1].Interface().(error); err != nil {
		return nil, err
	}
	wtxn.Commit()
	return &changeIterator{typed: out[0]}, nil
}

// next returns what changed since the last call, to be gone through once, and a
// channel that is closed when there is more.
func (it *changeIterator) next(txn statedb.ReadTxn) (changes iter.Seq[change], watch <-chan struct{}) {
	out := it.typed.MethodByName("Next").Call([]reflect.Value{reflect.ValueOf(txn)})
	return func(yield func(change) bool) {
		for c := range out[0].Seq2() {
			if !yield(change{
				Object:   c.FieldByName("Object").Interface(),
				Revision: c.FieldByName("Revision").Uint(),
				Deleted:  c.FieldByName("Deleted").Bool(),
			}) {
				return
			}
		}
	}, out[1].Interface().(<-chan struct{})
}

// close lets the table forget rows that were deleted since.
func (it *changeIterator) close() { it.typed.MethodByName("Close").Call(nil) }
