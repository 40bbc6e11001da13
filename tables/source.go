// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
)

// Source is where rows come from that no rule derives. It is no table: the module that has a source
// declares it with [SourceOut], so that the data flow can be shown.
type Source struct {
	Name   string // in kebab case, and not that of a table
	Tables []SourceTable
}

// SourceTable is a table that a source fills.
type SourceTable struct {
	Table statedb.TableMeta
	What  string // that is read, such as a kind of object; empty if the table says it
}

// SourceOut adds a source to those of other modules.
type SourceOut struct {
	cell.Out

	Source Source `group:"sources"`
}

// NewSourceOut returns the source of some tables.
func NewSourceOut(name string, tables ...statedb.TableMeta) SourceOut {
	s := Source{Name: name}
	for _, table := range tables {
		s.Tables = append(s.Tables, SourceTable{Table: table})
	}
	return SourceOut{Source: s}
}
