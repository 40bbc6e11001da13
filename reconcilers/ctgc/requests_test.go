// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
)

// A pass whose caller has left leaves a row, and touches no other maps.
func TestGivenUp(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		others := &fakeCollector{counts: map[string]int{ctmap.CT4TCP: 10}}
		w.runner.clusters = func([]*set) ([]*set, error) {
			other := w.newSet(DefaultConfig)
			other.name, other.collector = "cluster-1", others
			return []*set{other}, nil
		}
		w.set(ctmap.CT4TCP, 10)
		w.wait(time.Minute) // the other set is seen
		ctx, cancel := context.WithCancel(w.t.Context())
		w.does(func(gc.Filter) []gc.Pass {
			cancel()
			return []gc.Pass{{Map: ctmap.CT4TCP, Scanned: 10}, {Map: ctmap.CT4Any, Scanned: 3}}
		})
		passes, err := w.runner.Run(ctx, gc.Filter{Expired: true}, "impatient")
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, passes, 2)
		require.Empty(t, others.takeRuns())
		rows := w.rows()
		require.Len(t, rows, 2)
		require.Empty(t, rows[0].Error, "this map was done with")
		require.Equal(t, "context canceled", rows[1].Error)
		require.EqualValues(t, 1, w.metric("sluice_ctgc_runs_total", "done"))
		require.EqualValues(t, 1, w.metric("sluice_ctgc_runs_total", "failed"))

		_, err = w.runner.Run(w.t.Context(), gc.Filter{Expired: true}, "patient")
		require.NoError(t, err)
		require.Len(t, others.takeRuns(), 1)
	})
}

// Requests do not pass for the runner's own passes, which the interval follows.
func TestReasons(t *testing.T) {
	inBubble(t, DefaultConfig, func(w *world) {
		for reason, message := range map[string]string{
			ReasonInterval:            `reason: "interval" is for passes that are not requested`,
			ReasonEndpointsGone:       "are not requested",
			strings.Repeat("ü", 65):   "reason: longer than 64 characters",
			"a\nb":                    `reason: "a\nb" has characters that cannot be printed`,
			"\x1b[31m":                "cannot be printed",
			"\xff":                    "cannot be printed",
			"right-to-left \u202eabc": "cannot be printed",
		} {
			_, err := w.runner.Run(w.t.Context(), gc.Filter{}, reason)
			require.ErrorContains(t, err, message)
			_, err = w.runner.Flush(w.t.Context(), nil, reason)
			require.ErrorContains(t, err, message)
		}
		require.Empty(t, w.rows())
		for _, reason := range []string{"", ReasonRequest, strings.Repeat("ü", 64), "Ops: look into #12"} {
			_, err := w.runner.Run(w.t.Context(), gc.Filter{Expired: true, Orphans: true}, reason)
			require.NoError(t, err)
		}
		require.Len(t, w.rows(), 4)
		require.Equal(t, firstInterval, w.rows()[3].NextRun.Sub(w.rows()[3].Started), "it is as at first")
	})
}
