// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
)

// A round waits for what the rule awaits.
func TestAwait(t *testing.T) {
	asked := make(chan int, 8)
	f := newFixture(t, func(f *fixture, rule *Rule[string, *shown]) {
		rule.Await = func(txn statedb.ReadTxn) (bool, []<-chan struct{}) {
			_, watch := f.members.AllWatch(txn)
			asked <- f.members.NumObjects(txn)
			return f.members.NumObjects(txn) > 1, []<-chan struct{}{watch}
		}
	})
	over := make(chan bool)
	go func() { over <- f.runner.awaitMore(t.Context()) }()
	require.Equal(t, 0, <-asked)
	f.insert(&member{1, "a", 1})
	require.Equal(t, 1, <-asked)
	f.insert(&member{2, "a", 1})
	require.True(t, <-over)
}

// It does not wait for long for what does not come.
func TestAwaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(_ *fixture, rule *Rule[string, *shown]) {
			rule.Await = func(statedb.ReadTxn) (bool, []<-chan struct{}) { return false, nil }
		})
		defer f.release()
		start := time.Now()
		require.True(t, f.runner.awaitMore(t.Context()))
		require.Equal(t, awaitMost, time.Since(start))
		start = time.Now()
		require.True(t, f.runner.awaitMore(t.Context()))
		require.Zero(t, time.Since(start), "what does not come is not waited for before each round")

		ctx, stop := context.WithCancel(t.Context())
		stop()
		require.False(t, f.runner.awaitMore(ctx), "the agent stops")
	})
}
