// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"slices"
	"strings"
	"sync"

	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics has the [Stats] of all rules and publishes them for Prometheus.
type Metrics struct {
	mu    sync.Mutex
	rules []*Stats
}

// NewMetrics returns metrics without rules.
func NewMetrics() *Metrics { return &Metrics{} }

// All returns the stats of each rule, in order of table name.
func (m *Metrics) All() []*Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	rules := slices.Clone(m.rules)
	slices.SortFunc(rules, func(a, b *Stats) int { return strings.Compare(a.table, b.table) })
	return rules
}

// add has a rule counted that derives a table from others.
func (m *Metrics) add(table string, inputs ...InputOf) *Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &Stats{table: table, inputs: inputs}
	m.rules = append(m.rules, s)
	return s
}

var (
	roundsDesc = prometheus.NewDesc("sluice_derive_rounds_total",
		"Rounds in which keys of a derived table were computed.", []string{"table"}, nil)
	keysDesc = prometheus.NewDesc("sluice_derive_keys_total",
		"Keys of a derived table that were computed.", []string{"table"}, nil)
	rowsDesc = prometheus.NewDesc("sluice_derive_rows_total",
		"Rows of a derived table that were computed, inserted and deleted.", []string{"table", "outcome"}, nil)
)

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- roundsDesc
	ch <- keysDesc
	ch <- rowsDesc
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, s := range m.All() {
		c := s.Counts()
		counter := func(desc *prometheus.Desc, n int, labels ...string) {
			ch <- prometheus.MustNewConstMetric(
				desc, prometheus.CounterValue, float64(n), append([]string{s.table}, labels...)...,
			)
		}
		counter(roundsDesc, c.Rounds)
		counter(keysDesc, c.Keys)
		counter(rowsDesc, c.Rows, "computed")
		counter(rowsDesc, c.Inserted, "inserted")
		counter(rowsDesc, c.Deleted, "deleted")
	}
}

// Stats counts the work of one rule.
type Stats struct {
	table  string
	inputs []InputOf

	mu    sync.Mutex
	total Counts
}

// Table is the name of the derived table.
func (s *Stats) Table() string { return s.table }

// Inputs are the tables that it is derived from.
func (s *Stats) Inputs() []InputOf { return s.inputs }

// InputOf is a table that another one is derived from.
type InputOf struct {
	Table    string
	Feedback bool // it follows from the output, see [Feedback]
}

// Counts is the work of a rule since the start.
type Counts struct {
	Rounds   int // transactions that computed a key
	Keys     int // keys computed
	Rows     int // rows computed
	Inserted int // rows written, new or changed
	Deleted  int // rows deleted
}

// Counts returns the work done so far.
func (s *Stats) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// transaction is that of a rule. It counts what is written to each output.
type transaction struct {
	statedb.WriteTxn
	counts map[string]Counts // by table
}

// count counts rows in the transaction of a rule, and nothing in that of a test.
func count(out statedb.WriteTxn, table string, work Counts) {
	if t, ok := out.(*transaction); ok {
		t.counts[table] = t.counts[table].plus(work)
	}
}

// of is the work for an output, of a transaction that computed some keys.
func (t *transaction) of(table string, keys int) Counts {
	if keys == 0 {
		return Counts{}
	}
	return t.counts[table].plus(Counts{Rounds: 1, Keys: keys})
}

// add counts work.
func (s *Stats) add(c Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total = s.total.plus(c)
}

func (c Counts) plus(o Counts) Counts {
	return Counts{
		Rounds: c.Rounds + o.Rounds, Keys: c.Keys + o.Keys, Rows: c.Rows + o.Rows,
		Inserted: c.Inserted + o.Inserted, Deleted: c.Deleted + o.Deleted,
	}
}
