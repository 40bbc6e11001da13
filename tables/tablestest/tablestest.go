// SPDX-License-Identifier: Apache-2.0

// Package tablestest has tables that a test writes by hand, and rules that it runs by hand
// over them. Only tests import it. An error fails the test.
package tablestest

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// Table is a table that a test writes.
type Table[Row any] struct {
	statedb.RWTable[Row]
	t  testing.TB
	db *statedb.DB
}

// Open adds a table with some rows to a database.
func Open[Row any](
	t testing.TB, db *statedb.DB, create func(*statedb.DB) (statedb.RWTable[Row], error),
	rows ...Row,
) Table[Row] {
	t.Helper()
	created, err := create(db)
	require.NoError(t, err)
	table := Of(t, db, created)
	table.Put(rows...)
	return table
}

// OpenEndpoints adds a table with some endpoints to the database of a node.
func OpenEndpoints(
	t testing.TB, db *statedb.DB, node string, rows ...*tables.Endpoint,
) Table[*tables.Endpoint] {
	t.Helper()
	create := func(db *statedb.DB) (statedb.RWTable[*tables.Endpoint], error) {
		return tables.NewEndpointTable(db, tables.LocalNode{Name: node})
	}
	return Open(t, db, create, rows...)
}

// Of lets a test write a table that is open already, even one that others may only read.
func Of[Row any](t testing.TB, db *statedb.DB, table statedb.Table[Row]) Table[Row] {
	return Table[Row]{table.(statedb.RWTable[Row]), t, db}
}

// Put inserts rows in one transaction.
func (t Table[Row]) Put(rows ...Row) {
	t.t.Helper()
	t.write(rows, t.Insert)
}

// Remove deletes rows in one transaction.
func (t Table[Row]) Remove(rows ...Row) {
	t.t.Helper()
	t.write(rows, t.Delete)
}

func (t Table[Row]) write(
	rows []Row, one func(statedb.WriteTxn, Row) (former Row, had bool, err error),
) {
	t.t.Helper()
	wtxn := t.db.WriteTxn(t.RWTable)
	defer wtxn.Abort()
	for _, row := range rows {
		_, _, err := one(wtxn, row)
		require.NoError(t.t, err)
	}
	wtxn.Commit()
}

// Insert is [Table.Put] of a table that is open already.
func Insert[Row any](t testing.TB, db *statedb.DB, table statedb.Table[Row], rows ...Row) {
	t.Helper()
	Of(t, db, table).Put(rows...)
}

// Delete is [Table.Remove] of a table that is open already.
func Delete[Row any](t testing.TB, db *statedb.DB, table statedb.Table[Row], rows ...Row) {
	t.Helper()
	Of(t, db, table).Remove(rows...)
}

// Rule is a rule that a test runs.
type Rule[Key comparable] struct {
	*derive.Stepper[Key]
	t testing.TB
}

// NewRule returns a rule that has run nothing yet.
func NewRule[Key comparable](t testing.TB, db *statedb.DB, rule derive.Rule[Key]) *Rule[Key] {
	t.Helper()
	stepper, err := derive.NewStepper(db, rule)
	require.NoError(t, err)
	return &Rule[Key]{stepper, t}
}

// Step runs one transaction, and reports whether there is more to compute.
func (r *Rule[Key]) Step() (more bool) {
	r.t.Helper()
	more, err := r.Stepper.Step()
	require.NoError(r.t, err)
	return more
}

// Work runs transactions until there is nothing left to compute.
func (r *Rule[Key]) Work() {
	r.t.Helper()
	require.NoError(r.t, r.Stepper.Work(r.t.Context()))
}
