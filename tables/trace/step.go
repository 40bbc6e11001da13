// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"iter"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/condition"
)

// add tells of the rows of a table in a step.
func add[Row statedb.TableWritable](
	s *Trace, table statedb.Table[Row], meaning string, rows iter.Seq[Row],
) {
	addAs(s, table.Name(), meaning, rows)
}

// addAs is add for rows that sum up those of the table.
func addAs[Row statedb.TableWritable](s *Trace, table, meaning string, rows iter.Seq[Row]) {
	var header Row
	step := Step{
		Table: table, Meaning: meaning, Columns: header.TableHeader(),
		Rows: [][]string{}, Conditions: []condition.Condition{},
	}
	var fine []Row // as many as may be shown
	for row := range rows {
		step.Total++
		c := condition.Of(row)
		step.Add(c)
		switch {
		case c != condition.Fine && len(step.Rows) < MaxRows:
			step.Rows = append(step.Rows, row.TableRow())
			step.Conditions = append(step.Conditions, c)
		case c == condition.Fine && len(fine) < MaxRows:
			fine = append(fine, row)
		}
	}
	for _, row := range fine[:min(len(fine), MaxRows-len(step.Rows))] {
		step.Rows = append(step.Rows, row.TableRow())
		step.Conditions = append(step.Conditions, condition.Fine)
	}
	s.Steps = append(s.Steps, step)
}

// one yields the row that a query finds, if any.
func one[Row any](
	txn statedb.ReadTxn, table statedb.Table[Row], query statedb.Query[Row],
) iter.Seq[Row] {
	return statedb.ToSeq(table.List(txn, query))
}

// each yields what the queries by some keys find.
func each[Key, Row any](
	txn statedb.ReadTxn, keys []Key, query func(Key) statedb.Query[Row],
	find func(statedb.ReadTxn, statedb.Query[Row]) iter.Seq2[Row, statedb.Revision],
) iter.Seq[Row] {
	return func(yield func(Row) bool) {
		for _, key := range keys {
			for row := range find(txn, query(key)) {
				if !yield(row) {
					return
				}
			}
		}
	}
}

// numbers returns those of rows.
func numbers[Row interface{ GetLife() tables.Life }](rows []Row) []uint32 {
	numbers := make([]uint32, len(rows))
	for i, row := range rows {
		numbers[i] = row.GetLife().Number
	}
	return numbers
}

// mirrors yields what the kernel has under the keys of rows.
func mirrors[K, V tables.MapPart, Row interface{ MapKey() K }](
	txn statedb.ReadTxn, table statedb.Table[*tables.Mirror[K, V]], rows []Row,
) iter.Seq[*tables.Mirror[K, V]] {
	return each(txn, rows, func(row Row) statedb.Query[*tables.Mirror[K, V]] {
		return tables.MirrorByKey[K, V](row.MapKey())
	}, table.List)
}
