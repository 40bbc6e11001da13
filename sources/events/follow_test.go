// SPDX-License-Identifier: Apache-2.0

package events

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func TestFollow(t *testing.T) {
	w := start(t, noPrograms{})
	rows := func() []*tables.Monitor { return statedb.Collect(w.Monitors.All(w.DB.ReadTxn())) }
	drops, all := make(chan *tables.Event, 10), make(chan *tables.Event, 10)
	dropFilter, err := ParseFilter([]string{"drop"}, nil, nil)
	require.NoError(t, err)
	pods, err := ParseFilter(nil, nil, []string{"shop/web"})
	require.NoError(t, err)

	endDrops := follow(t, w.Source, dropFilter, func(e *tables.Event) { drops <- e })
	require.Empty(t, rows(), "who wants no flows has no row")
	endAll := follow(t, w.Source, pods, func(e *tables.Event) { all <- e })
	require.Len(t, rows(), 1)
	require.Equal(t, "pod=shop/web", rows()[0].Filters)

	w.handle(rawDrop())
	w.handle(rawDrop(func(e *bpf.Event) { e.Kind = bpf.EventFlow }))
	require.Equal(t, tables.EventDrop, (<-drops).Kind)
	require.Equal(t, tables.EventDrop, (<-all).Kind)
	require.Equal(t, tables.EventFlow, (<-all).Kind)

	endAll()
	require.Empty(t, rows(), "gone with the follower")
	w.handle(rawDrop())
	<-drops
	endDrops()
	require.Empty(t, drops)
	require.Empty(t, all)
	require.Empty(t, *w.followers.Load())
	require.Equal(t, Counts{Drops: 2, Flows: 1}, w.Counts())
}

func TestPortsExhausted(t *testing.T) {
	w := start(t, noPrograms{})
	got := make(chan *tables.Event, 10)
	ctx := t.Context()
	w.PortsExhausted().Observe(ctx, func(e *tables.Event) { got <- e }, func(error) {})
	w.handle(rawDrop())
	w.handle(rawDrop(func(e *bpf.Event) { e.Reason = bpf.ReasonNoSNATPort }))
	require.Equal(t, "no SNAT port", (<-got).Reason)
	require.Empty(t, got)
	require.Zero(t, w.Monitors.NumObjects(w.DB.ReadTxn()), "it makes the kernel report no flows")

	shares := make(chan *tables.Event, 10)
	w.SharesUsedUp().Observe(ctx, func(e *tables.Event) { shares <- e }, func(error) {})
	w.handle(rawDrop(func(e *bpf.Event) { e.Reason = bpf.ReasonConnectionShare }))
	w.handle(rawDrop(func(e *bpf.Event) { e.Reason = bpf.ReasonPortShare }))
	require.Equal(t, "connection share used up", (<-shares).Reason)
	require.Equal(t, "port share used up", (<-shares).Reason)
	require.Empty(t, got)
}

// A follower that does not read loses events, and learns how many behind those that it gets.
func TestSlowFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, noPrograms{})
		const sent = queueSize + 500
		began, release := make(chan struct{}), make(chan struct{})
		slow := make(chan *tables.Event, 2*sent)
		var once sync.Once
		endSlow := follow(t, w.Source, Filter{}, func(e *tables.Event) {
			once.Do(func() {
				close(began)
				<-release
			})
			slow <- e
		})
		w.handle(rawDrop())
		<-began // holds the first
		for range sent {
			w.handle(rawDrop()) // does not block
		}
		require.Equal(t, uint64(500), w.Counts().Lost)
		close(release)

		for range queueSize + 1 {
			require.Equal(t, tables.EventDrop, (<-slow).Kind)
		}
		lost := <-slow
		require.Equal(t, tables.EventLost, lost.Kind)
		require.Equal(t, uint64(500), lost.Lost)
		require.Regexp(t, `^\S+ LOST 500 events: `, lost.String())
		w.handle(rawDrop())
		require.Equal(t, tables.EventDrop, (<-slow).Kind, "and it goes on")
		endSlow()
		require.Empty(t, slow)
	})
}

// A follower whose queue is never empty learns of the events that it loses all the same.
func TestSlowFollowerOfAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, noPrograms{})
		next := make(chan *tables.Event)
		endSlow := follow(t, w.Source, Filter{}, func(e *tables.Event) { next <- e })
		for range 1 + queueSize + 1 { // one that it holds, and one that is lost
			w.handle(rawDrop())
			synctest.Wait()
		}
		require.Equal(t, uint64(1), w.Counts().Lost)
		time.Sleep(tellInterval + time.Nanosecond)
		require.Equal(t, tables.EventDrop, (<-next).Kind)
		require.Equal(t, uint64(1), (<-next).Lost)
		for range queueSize {
			require.Equal(t, tables.EventDrop, (<-next).Kind)
		}
		synctest.Wait()
		require.Empty(t, next)
		endSlow()
	})
}
