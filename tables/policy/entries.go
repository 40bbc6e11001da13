// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"iter"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type entryParams struct {
	cell.In

	Tables
	Output statedb.RWTable[*tables.PolicyEntry]
}

// deriveEntries keeps the verdicts on each pair of classes.
//
// Those on classes of which nobody knows what they stand for are taken from the
// mirror of the kernel: once, when the class is first seen.
func deriveEntries(p derive.Params, e entryParams) error {
	concerned := &pairs{Tables: e.Tables, Entries: e.Output}
	computer := NewComputer(e.Tables)
	_, err := derive.Register(p, derive.Rule[tables.PolicyPair, *tables.PolicyEntry]{
		Output: e.Output,
		Inputs: []derive.Input[tables.PolicyPair]{
			derive.Initially(concerned.byFirstClass, fromClasses(e.Members, concerned.byClass)),
			derive.Joined(derive.FromChange(e.Rules, concerned.byPolicy)),
		},
		After: []statedb.TableMeta{e.Kernel},
		Existing: func(txn statedb.ReadTxn, pair tables.PolicyPair) iter.Seq2[*tables.PolicyEntry, statedb.Revision] {
			return e.Output.Prefix(txn, tables.PolicyEntriesOfPair(pair))
		},
		Rows:  computer.Entries,
		Equal: (*tables.PolicyEntry).Equal,
	})
	return err
}

// fromClasses is an input of the rows of classes: those of members, which are many,
// come and go with pods.
func fromClasses[Key comparable](members statedb.Table[*tables.ClassMember], affects func(txn statedb.ReadTxn, old, new *tables.ClassMember, affect func(Key))) derive.Input[Key] {
	return derive.Indexed(tables.AnyClassRow, derive.Where((*tables.ClassMember).IsClass, derive.FromChange(members, affects)))
}
