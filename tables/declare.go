// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Declare returns the constructor of a table. No two rows share a key of the primary
// index.
func Declare[Row statedb.TableWritable](
	name string, primary statedb.Indexer[Row], secondary ...statedb.Indexer[Row],
) func(*statedb.DB) (statedb.RWTable[Row], error) {
	return func(db *statedb.DB) (statedb.RWTable[Row], error) {
		return statedb.NewTable(db, name, primary, secondary...)
	}
}

// Own constructs a table in the module that writes it: only this module can have the
// [statedb.RWTable], and all modules can have the [statedb.Table].
func Own[Row any](create func(*statedb.DB) (statedb.RWTable[Row], error)) cell.Cell {
	return cell.Group(cell.ProvidePrivate(create), cell.Provide(statedb.RWTable[Row].ToTable))
}

// OwnDesired is [Own] for a table that has a reconciler in another module, which gets
// the table as [Desired].
func OwnDesired[Row any](create func(*statedb.DB) (statedb.RWTable[Row], error)) cell.Cell {
	return cell.Group(Own(create), cell.Provide(NewDesired[Row]))
}

// UniqueIndex is an index by a key that each row has and no other row shares.
func UniqueIndex[Row, Key any](
	name string, keys Keys[Key], of func(Row) Key,
) statedb.Index[Row, Key] {
	idx := Index(name, keys, of)
	idx.Unique = true
	return idx
}

// Index is an index by a key that each row has.
func Index[Row, Key any](name string, keys Keys[Key], of func(Row) Key) statedb.Index[Row, Key] {
	return newIndex(name, keys, func(row Row) index.KeySet {
		return index.NewKeySet(keys.of(of(row)))
	})
}

// IndexIf is an index by a key that only some rows have.
func IndexIf[Row, Key any](
	name string, keys Keys[Key], of func(Row) (key Key, has bool),
) statedb.Index[Row, Key] {
	return newIndex(name, keys, func(row Row) index.KeySet {
		key, has := of(row)
		if !has {
			return index.NewKeySet()
		}
		return index.NewKeySet(keys.of(key))
	})
}

// FlagIndex is an index, by true, of the rows of which something is so: it is as small as
// these are few.
func FlagIndex[Row any](name string, is func(Row) bool) statedb.Index[Row, bool] {
	return IndexIf(name, BoolKeys, func(row Row) (bool, bool) { return true, is(row) })
}

// IndexEach is an index by any number of keys of each row.
func IndexEach[Row, Key any](
	name string, keys Keys[Key], of func(Row) []Key,
) statedb.Index[Row, Key] {
	return newIndex(name, keys, func(row Row) index.KeySet {
		values := of(row)
		set := make([]index.Key, len(values))
		for i, value := range values {
			set[i] = keys.of(value)
		}
		return index.NewKeySet(set...)
	})
}

// newIndex is an index by keys that are made in another way.
func newIndex[Row, Key any](
	name string, keys Keys[Key], of func(Row) index.KeySet,
) statedb.Index[Row, Key] {
	return statedb.Index[Row, Key]{
		Name: name, FromObject: of, FromKey: keys.of, FromString: keys.fromString,
	}
}

// Keys says how values of a type are keys of an index.
type Keys[Key any] struct {
	of         func(Key) index.Key
	fromString func(string) (index.Key, error)
}

// KeysOf returns the keys of a type: how a value is one, and how the text of a script or
// a request is. Rows are in the order of the bytes of their keys.
func KeysOf[Key any](
	of func(Key) index.Key, fromString func(string) (index.Key, error),
) Keys[Key] {
	return Keys[Key]{of, fromString}
}

// Keys of common types.
var (
	StringKeys = KeysOf(index.String, index.FromString)
	BoolKeys   = KeysOf(index.Bool, index.BoolString)
	IntKeys    = KeysOf(index.Int, index.IntString)
	Uint32Keys = KeysOf(index.Uint32, index.Uint32String)
	Uint64Keys = KeysOf(index.Uint64, index.Uint64String)
	AddrKeys   = KeysOf(index.NetIPAddr, index.NetIPAddrString)
	PrefixKeys = KeysOf(index.NetIPPrefix, index.NetIPPrefixString)
	NameKeys   = KeysOf(Name.Key, index.FromString)
)
