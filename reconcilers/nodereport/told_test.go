// SPDX-License-Identifier: Apache-2.0

package nodereport

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// The generation of voters that this node goes by is told, though nothing else is to be.
func TestVotersTaken(t *testing.T) {
	in(t, func(w *world) {
		for _, generation := range []uint32{3, 4} {
			wtxn := w.DB.WriteTxn(w.taken)
			_, _, err := w.taken.Insert(wtxn, &tables.EgressVotersTaken{Generation: generation})
			require.NoError(t, err)
			wtxn.Commit()
			time.Sleep(time.Minute)
			synctest.Wait()
			written := w.written()
			require.NotEmpty(w, written)
			require.Equal(w, generation, written[len(written)-1].report.Status.EgressVoters)
		}
	})
}

// That this node is drained is told, though nothing else is to be, and only with policies.
func TestDrainingTold(t *testing.T) {
	const drain = "2026-11-27T12:00:00Z"
	for _, enabled := range []bool{true, false} {
		in(t, func(w *world) {
			w.Reporting.Enabled = enabled
			w.tell("a", 10)
			time.Sleep(time.Minute)
			wtxn := w.DB.WriteTxn(w.nodes)
			_, _, err := w.nodes.Insert(wtxn, &tables.Node{Name: "node-1", UID: "uid-1", Drain: drain})
			require.NoError(t, err)
			wtxn.Commit()
			time.Sleep(time.Minute)
			synctest.Wait()
			written := w.written()
			told := written[len(written)-1].report.Status
			require.Equal(w, map[bool]string{true: drain, false: ""}[enabled], told.Drain)
			require.Zero(w, told.Summary.Leaving)
		})
	}
}
