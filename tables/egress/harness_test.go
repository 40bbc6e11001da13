// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/tables/transform"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// base is what the harness of each rule has: a database, and the rule, which runs by hand.
type base[Key comparable] struct {
	testing.TB
	db   *statedb.DB
	step *transform.Stepper[Key]
}

func newBase[Key comparable](t testing.TB) *base[Key] { return &base[Key]{TB: t, db: statedb.New()} }

func (b *base[Key]) start(rule transform.Rule[Key]) {
	var err error
	b.step, err = transform.NewStepper(b.db, rule)
	require.NoError(b, err)
}

func (b *base[Key]) work() { require.NoError(b, b.step.Work(b.Context())) }

func fill[Row any, Key comparable](
	b *base[Key], table *statedb.RWTable[Row], create func(*statedb.DB) (statedb.RWTable[Row], error),
) {
	var err error
	*table, err = create(b.db)
	require.NoError(b, err)
}

func put[Row any, Key comparable](b *base[Key], table statedb.RWTable[Row], rows ...Row) {
	wtxn := b.db.WriteTxn(table)
	for _, row := range rows {
		_, _, err := table.Insert(wtxn, row)
		require.NoError(b, err)
	}
	wtxn.Commit()
}

func remove[Row any, Key comparable](b *base[Key], table statedb.RWTable[Row], rows ...Row) {
	wtxn := b.db.WriteTxn(table)
	for _, row := range rows {
		_, _, err := table.Delete(wtxn, row)
		require.NoError(b, err)
	}
	wtxn.Commit()
}
