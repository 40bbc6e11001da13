// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"log/slog"
	"strconv"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"
)

// declared is a row with a key of each kind of index.
type declared struct {
	Name  string
	Shelf uint32
	Owner string // none if empty
	Tags  []string

	Reconciled
}

func (*declared) TableHeader() []string    { return []string{"Name", "Shelf"} }
func (d *declared) TableRow() []string     { return []string{d.Name, strconv.Itoa(int(d.Shelf))} }
func (d *declared) Equal(o *declared) bool { return d.Name == o.Name && d.Shelf == o.Shelf }

var (
	declaredNameIndex  = UniqueIndex("name", StringKeys, func(d *declared) string { return d.Name })
	declaredShelfIndex = Index("shelf", Uint32Keys, func(d *declared) uint32 { return d.Shelf })
	declaredOwnerIndex = IndexIf("owner", StringKeys,
		func(d *declared) (string, bool) { return d.Owner, d.Owner != "" })
	declaredTagIndex = IndexEach("tag", StringKeys, func(d *declared) []string { return d.Tags })

	newDeclaredTable = Declare(
		"declared", declaredNameIndex, declaredShelfIndex, declaredOwnerIndex, declaredTagIndex,
	)
)

func TestDeclare(t *testing.T) {
	db := statedb.New()
	table, err := newDeclaredTable(db)
	require.NoError(t, err)
	require.Equal(t, "declared", table.Name())
	require.ElementsMatch(t, []string{"name", "shelf", "owner", "tag"}, table.Indexes())

	wtxn := db.WriteTxn(table)
	for _, row := range []*declared{
		{Name: "a", Shelf: 1, Owner: "x", Tags: []string{"red", "new"}},
		{Name: "b", Shelf: 1, Tags: []string{"red"}},
		{Name: "c", Shelf: 2, Owner: "x"},
		{Name: "c", Shelf: 3, Owner: "x"}, // in place of the one before
	} {
		_, _, err := table.Insert(wtxn, row)
		require.NoError(t, err)
	}
	wtxn.Commit()

	found := func(query statedb.Query[*declared]) (names []string) {
		for row := range table.List(db.ReadTxn(), query) {
			names = append(names, row.Name)
		}
		return names
	}
	require.Equal(t, []string{"c"}, found(declaredNameIndex.Query("c")))
	require.Equal(t, []string{"a", "b"}, found(declaredShelfIndex.Query(1)))
	require.Empty(t, found(declaredShelfIndex.Query(2)))
	require.Equal(t, []string{"a", "c"}, found(declaredOwnerIndex.Query("x")))
	require.Empty(t, found(declaredOwnerIndex.Query("")))
	require.Equal(t, []string{"a", "b"}, found(declaredTagIndex.Query("red")))
	require.Equal(t, []string{"a"}, found(declaredTagIndex.Query("new")))

	key, err := declaredShelfIndex.FromString("1")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, found(declaredShelfIndex.QueryFromKey(key)))
	_, err = declaredShelfIndex.FromString("one")
	require.Error(t, err)
}

// TestDeclaredIndexAllocations: each insert of a row calls the function of each index.
func TestDeclaredIndexAllocations(t *testing.T) {
	row := &declared{Name: "a", Shelf: 1, Tags: []string{"red", "new"}}
	literal := func(d *declared) index.KeySet { return index.NewKeySet(index.Uint32(d.Shelf)) }
	allocations := func(keys func(*declared) index.KeySet) float64 {
		return testing.AllocsPerRun(100, func() { keys(row) })
	}
	require.LessOrEqual(t, allocations(declaredShelfIndex.FromObject), allocations(literal))
	require.Zero(t, allocations(declaredOwnerIndex.FromObject))
	require.LessOrEqual(t, allocations(declaredTagIndex.FromObject), 1.0)
}

// TestOwn: only the module that owns a table can write it.
func TestOwn(t *testing.T) {
	populate := func(wants ...any) error {
		return hive.New(
			statedb.Cell,
			cell.Module("owner", "Owner", OwnDesired(newDeclaredTable)),
			cell.Module("other", "Other", cell.Invoke(wants...)),
		).Populate(slog.New(slog.DiscardHandler))
	}
	require.NoError(t, populate(func(statedb.Table[*declared]) {}, func(Desired[*declared]) {}))
	require.ErrorContains(t, populate(func(statedb.RWTable[*declared]) {}), "RWTable")
}

func TestReconciled(t *testing.T) {
	db := statedb.New()
	table, err := newDeclaredTable(db)
	require.NoError(t, err)
	row := &declared{Name: "a", Reconciled: Pending()}
	wtxn := db.WriteTxn(table)
	_, _, err = table.Insert(wtxn, row)
	require.NoError(t, err)
	wtxn.Commit()

	require.NoError(t, SetStatus(db, NewDesired(table), reconciler.StatusDone(), row))
	now, _, _ := table.Get(db.ReadTxn(), declaredNameIndex.Query("a"))
	require.Equal(t, reconciler.StatusKindDone, now.GetStatus().Kind)
	require.Equal(t, reconciler.StatusKindPending, row.GetStatus().Kind, "rows are immutable")

	other := &declared{Name: "a", Shelf: 2}
	require.NoError(t, SetStatus(db, NewDesired(table), reconciler.StatusError(errors.New("x")), other))
	now, _, _ = table.Get(db.ReadTxn(), declaredNameIndex.Query("a"))
	require.Equal(t, reconciler.StatusKindDone, now.GetStatus().Kind, "of what is wanted no more")
}
