// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// Show publishes maps without a reconciler in the table bpf-maps and in the metrics. It does not
// write what is published already.
func (c *Control) Show(db *statedb.DB, rows ...tables.BPFMap) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	rows = slices.DeleteFunc(
		slices.Clone(rows),
		func(row tables.BPFMap) bool { return c.shown[row.Name] == row },
	)
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b tables.BPFMap) int { return strings.Compare(a.Name, b.Name) })
	wtxn := db.WriteTxn(c.table)
	defer wtxn.Abort()
	for _, row := range rows {
		if _, ok := c.reports[row.Name]; ok {
			return fmt.Errorf("show map %s: it has a reconciler, which shows it", row.Name)
		}
		if _, _, err := c.table.Insert(wtxn, &row); err != nil {
			return fmt.Errorf("show map %s: %w", row.Name, err)
		}
	}
	wtxn.Commit()
	for _, row := range rows {
		c.shown[row.Name] = row
		c.metrics.fill(&row)
	}
	return nil
}

// Hide removes what Show published.
func (c *Control) Hide(db *statedb.DB, names ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	wtxn := db.WriteTxn(c.table)
	defer wtxn.Abort()
	for _, name := range names {
		row, ok := c.shown[name]
		if !ok {
			continue
		}
		if _, _, err := c.table.Delete(wtxn, &row); err != nil {
			return fmt.Errorf("hide map %s: %w", name, err)
		}
		delete(c.shown, name)
		c.metrics.forget(name)
	}
	wtxn.Commit()
	return nil
}
