// SPDX-License-Identifier: Apache-2.0

package nodereport

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// vote puts the row of voters, or removes it.
func (w *world) vote(row *tables.EgressVoters) {
	wtxn := w.DB.WriteTxn(w.set)
	defer wtxn.Abort()
	require.NoError(w, w.set.DeleteAll(wtxn))
	if row != nil {
		_, _, err := w.set.Insert(wtxn, row)
		require.NoError(w, err)
	}
	wtxn.Commit()
}

// acknowledged returns the generation that the last report has.
func (w *world) acknowledged() uint32 {
	synctest.Wait()
	written := w.written()
	require.NotEmpty(w, written)
	return written[len(written)-1].report.Status.EgressVoters
}

// A generation is acknowledged when votes of the former one have run out, though nothing else is
// to be told, and stays so when there is no set.
func TestAcknowledge(t *testing.T) {
	in(t, func(w *world) {
		w.vote(&tables.EgressVoters{Generation: 3})
		time.Sleep(19 * time.Second)
		require.Zero(t, w.acknowledged())
		time.Sleep(2 * time.Second)
		require.EqualValues(t, 3, w.acknowledged())

		w.vote(&tables.EgressVoters{Generation: 4})
		time.Sleep(15 * time.Second)
		w.vote(&tables.EgressVoters{Generation: 5})
		time.Sleep(15 * time.Second)
		require.EqualValues(t, 3, w.acknowledged(), "votes of generation 4 count")
		time.Sleep(6 * time.Second)
		require.EqualValues(t, 5, w.acknowledged())

		w.vote(&tables.EgressVoters{Error: "wrong"})
		w.tell("p", 1)
		time.Sleep(time.Minute)
		require.EqualValues(t, 5, w.acknowledged())
		w.vote(nil)
		w.tell("p", 2)
		time.Sleep(time.Minute)
		require.EqualValues(t, 5, w.acknowledged())
	})
}
