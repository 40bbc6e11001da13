// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"strconv"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// Each step is one transaction, until there is nothing left.
func TestStepper(t *testing.T) {
	f := newFixture(t)
	f.write(func(wtxn statedb.WriteTxn) {
		for i := range 2*maxKeys + 1 {
			f.items.Insert(wtxn, &item{i, strconv.Itoa(i), 1})
		}
	})
	s := &Stepper[string]{f.runner}
	for _, wantMore := range []bool{true, true, false} {
		more, err := s.Step()
		require.NoError(t, err)
		require.Equal(t, wantMore, more)
	}
	f.check()
	f.write(func(wtxn statedb.WriteTxn) { f.items.Insert(wtxn, &item{0, "0", 2}) })
	require.NoError(t, s.Work(t.Context()))
	f.check()
}
