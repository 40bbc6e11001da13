// SPDX-License-Identifier: Apache-2.0

package bpfmap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Maps that no reconciler writes are shown beside the others, and written when
// their numbers change.
func TestShow(t *testing.T) {
	a := newAgent(t, bpf.NewMemory())
	a.start()
	defer a.stop()
	revision := func(name string) uint64 {
		_, revision, found := a.table.Get(a.db.ReadTxn(), tables.BPFMapByName(name))
		require.True(t, found)
		return revision
	}
	one := tables.BPFMap{Name: "sluice_one", Type: tables.TypeLRU, Backend: "kernel", MaxEntries: 10, Entries: 4}
	two := one
	two.Name = "sluice_two"
	require.NoError(t, a.control.Show(a.db, two, one))
	row, _, found := a.table.Get(a.db.ReadTxn(), tables.BPFMapByName("sluice_one"))
	require.True(t, found)
	require.Equal(t, &one, row)
	families, err := a.metrics.Gather()
	require.NoError(t, err)
	pressure := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "sluice_map_pressure_ratio" {
			for _, m := range f.GetMetric() {
				pressure[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	require.Equal(t, 0.4, pressure["sluice_two"])

	first, second := revision("sluice_one"), revision("sluice_two")
	two.Entries++
	require.NoError(t, a.control.Show(a.db, one, two))
	require.Equal(t, first, revision("sluice_one"))
	require.Greater(t, revision("sluice_two"), second)

	require.ErrorContains(t, a.control.Show(a.db, tables.BPFMap{Name: "sluice_sources", Entries: 7}), "it has a reconciler")
	require.NoError(t, a.control.Hide(a.db, "sluice_one", "unknown"))
	_, _, found = a.table.Get(a.db.ReadTxn(), tables.BPFMapByName("sluice_one"))
	require.False(t, found)
	require.NoError(t, a.control.Show(a.db, one), "again")
}
