// SPDX-License-Identifier: Apache-2.0

// Package condition says of a row of any table in a word whether it is as it
// should be, for code that shows tables without knowing their rows.
package condition

import (
	"reflect"
	"sync"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/tables"
)

// Condition is how a row is doing.
type Condition string

// The conditions of a row.
const (
	Fine    Condition = ""        // nothing is to be said of it
	Pending Condition = "pending" // it is on its way, or waits for another
	Error   Condition = "error"   // needs an action
)

// Counts are the rows of a table by condition.
type Counts struct {
	Pending int `json:"pending"`
	Errors  int `json:"errors"`
}

// Add counts a row.
func (c *Counts) Add(condition Condition) {
	switch condition {
	case Pending:
		c.Pending++
	case Error:
		c.Errors++
	}
}

// Of returns the condition of a row. A row with a reconciliation status has that
// of its status, and one that is made from an object an error if the object has
// mistakes, whatever else is healthy.
func Of(row any) Condition {
	switch r := row.(type) {
	case interface{ GetStatus() reconciler.Status }:
		return ofStatus(r.GetStatus().Kind)
	case *tables.EgressPolicyStatus:
		return first(
			len(r.Errors) > 0 || r.Failed > 0 || r.Drops != "",
			r.Programmed < r.Rules || r.Pending != "",
		)
	case *tables.NetworkPolicyStatus:
		return ofState(r.State)
	case *tables.BPFMap:
		return first(r.Failed > 0, r.Pending+r.Waiting > 0)
	case *tables.Health:
		return first(r.Level == cell.StatusDegraded, false)
	case *tables.Node:
		return first(len(r.Errors) > 0 || !r.Ready, false)
	case *tables.NetworkPolicy:
		return first(len(r.Errors)+len(r.Unsupported) > 0, false)
	}
	return ofFields(row)
}

func first(wrong, pending bool) Condition {
	switch {
	case wrong:
		return Error
	case pending:
		return Pending
	}
	return Fine
}

func ofStatus(kind reconciler.StatusKind) Condition {
	// the kernel has it
	done := kind == reconciler.StatusKindDone || kind == reconciler.StatusKindRefreshing
	return first(kind == reconciler.StatusKindError, !done)
}

func ofState(state tables.PolicyState) Condition {
	switch state {
	case tables.PolicyInForce, tables.PolicyNotHere:
		return Fine
	case tables.PolicyPending:
		return Pending
	}
	return Error
}

// fields are where rows of a type tell what is wrong with them, nil if they do not.
type fields struct{ errors, err, desired []int }

var fieldsOf sync.Map // by type of row

// ofFields looks at what many types of rows have: the mistakes of their object, or
// the error of the last attempt; and what the kernel has, whether it is desired.
func ofFields(row any) Condition {
	v := reflect.Indirect(reflect.ValueOf(row))
	if v.Kind() != reflect.Struct {
		return Fine
	}
	f := lookUp(v.Type())
	switch {
	case f.desired != nil:
		return first(
			f.err != nil && v.FieldByIndex(f.err).Len() > 0, !v.FieldByIndex(f.desired).Bool(),
		)
	case f.errors != nil:
		return first(v.FieldByIndex(f.errors).Len() > 0, false)
	case f.err != nil:
		return first(v.FieldByIndex(f.err).Len() > 0, false)
	}
	return Fine
}

func lookUp(row reflect.Type) fields {
	if f, ok := fieldsOf.Load(row); ok {
		return f.(fields)
	}
	field := func(name string, kind reflect.Kind) []int {
		if f, ok := row.FieldByName(name); ok && f.Type.Kind() == kind {
			return f.Index
		}
		return nil
	}
	f := fields{
		errors:  field("Errors", reflect.Slice),
		err:     field("Error", reflect.String),
		desired: field("Desired", reflect.Bool),
	}
	fieldsOf.Store(row, f)
	return f
}
