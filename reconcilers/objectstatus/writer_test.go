// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-net/sluice/tables"
)

// world is a writer and what it reads and writes.
type world struct {
	*testing.T
	*writer
	server *server
	scope  *cell.SimpleHealth
	stop   func()
}

// start starts the writer of another agent for a server.
func start(t *testing.T, s *server) *world {
	db := statedb.New()
	table, err := tables.NewObjectStatusTable(db)
	require.NoError(t, err)
	w := &world{T: t, server: s}
	w.writer, err = newWriter(params{DB: db, Client: s, Recorder: s, Desired: tables.NewDesired(table)},
		prometheus.NewCounterVec(prometheus.CounterOpts{Name: "writes"}, []string{"outcome"}))
	require.NoError(t, err)
	_, w.scope = cell.NewSimpleHealth()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.run(ctx, w.scope.NewScope("test")) }()
	w.stop = sync.OnceFunc(func() { cancel(); require.NoError(t, <-ended) })
	return w
}

// in runs a test with a writer, in a time of its own.
func in(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &server{status: map[string]map[string]any{}})
		defer w.stop()
		test(w)
	})
}

// row is what an egress policy shall say.
func row(name string, programmed tables.ConditionStatus, reason, message string, nodes int) *tables.ObjectStatus {
	r := &tables.ObjectStatus{
		Policy: tables.EgressPolicyID(name), UID: "uid", Generation: 3, Nodes: tables.StatusNodes{Programmed: nodes, Total: 100},
		Conditions: []tables.Condition{
			{Type: tables.ConditionAccepted, Status: tables.ConditionTrue, Reason: "Valid"},
			{Type: tables.ConditionProgrammed, Status: programmed, Reason: reason, Message: message},
		},
		Reconciled: tables.Pending(),
	}
	if reason == "Failed" {
		r.Problems = []tables.Problem{{Reason: reason, Message: message, Condition: tables.ConditionProgrammed}}
	}
	return r
}

func (w *world) want(rows ...*tables.ObjectStatus) {
	wtxn := w.DB.WriteTxn(w.Desired)
	defer wtxn.Abort()
	for _, r := range rows {
		_, _, err := w.Desired.Insert(wtxn, r)
		require.NoError(w, err)
	}
	wtxn.Commit()
}

func (w *world) row(name string) *tables.ObjectStatus {
	r, _, found := w.Desired.Get(w.DB.ReadTxn(), tables.ObjectStatusByPolicy(tables.EgressPolicyID(name)))
	require.True(w, found)
	return r
}

func (w *world) level() cell.Level {
	h := w.scope.GetChild("test")
	h.Lock()
	defer h.Unlock()
	return h.Level
}

// A status is written when it says something else, its times move when the status of
// a condition does, and what others say stays.
func TestWrites(t *testing.T) {
	in(t, func(w *world) {
		w.server.status["/web"] = map[string]any{"conditions": []any{
			map[string]any{"type": "Audited", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
		}}
		w.want(row("web", tables.ConditionFalse, "Failed", "node-1: full", 99))
		time.Sleep(time.Second)
		first := w.server.says(t, "/web").Conditions
		require.Len(t, first, 3)
		require.Equal(t, "Audited", first[0].Type)
		require.EqualValues(t, 3, first[1].ObservedGeneration)
		require.Equal(t, reconciler.StatusKindDone, w.row("web").Status.Kind)
		require.Equal(t, []string{"Warning web Failed node-1: full"}, w.server.told())

		time.Sleep(time.Hour)
		require.Equal(t, [2]int{1, 1}, w.server.counts(), "nothing at rest")

		w.want(row("web", tables.ConditionTrue, "Programmed", "", 100))
		time.Sleep(time.Second)
		second := w.server.says(t, "/web").Conditions
		require.Equal(t, first[1], second[1], "it has not changed")
		require.Equal(t, "True", second[2].Status)
		require.True(t, first[2].LastTransitionTime.Before(&second[2].LastTransitionTime))

		// The same problem again is told again.
		w.want(row("web", tables.ConditionFalse, "Failed", "node-1: full", 99))
		time.Sleep(time.Minute)
		require.Len(t, w.server.told(), 2)
	})
}

// However much changes, an object is written every 5 s at most, and every minute if
// only numbers do; all objects together 5 times a second.
func TestWritesAreRare(t *testing.T) {
	in(t, func(w *world) {
		for i := range 600 { // a minute
			w.want(row("web", []tables.ConditionStatus{tables.ConditionTrue, tables.ConditionFalse}[i/7%2], "Programmed", "", i))
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, w.server.counts()[1], 13)
		time.Sleep(2 * time.Minute)

		before := w.server.counts()[1]
		for i := range 600 { // ten
			w.want(row("web", tables.ConditionTrue, "Programmed", "", i))
			time.Sleep(time.Second)
		}
		require.InDelta(t, 10, w.server.counts()[1]-before, 2)
		time.Sleep(2 * time.Minute)
		require.Equal(t, 599, w.server.says(t, "/web").Nodes.Programmed)

		before = w.server.counts()[1]
		for i := range 1000 {
			w.want(row(fmt.Sprintf("policy-%d", i), tables.ConditionTrue, "Programmed", "", 1))
		}
		time.Sleep(100 * time.Second)
		require.InDelta(t, 510, w.server.counts()[1]-before, 20)
		time.Sleep(200 * time.Second)
		require.Equal(t, 1000, w.server.counts()[1]-before)
	})
}

// A policy that is programmed, and reported, within a moment never shows that it is
// pending. One that takes longer does, and shows what comes of it at once.
func TestPending(t *testing.T) {
	in(t, func(w *world) {
		says := func() string {
			for _, c := range w.server.says(t, "/web").Conditions {
				if c.Type == tables.ConditionProgrammed {
					return c.Status + " " + c.Reason
				}
			}
			return ""
		}
		pending := func(nodes int) *tables.ObjectStatus {
			return row("web", tables.ConditionUnknown, tables.ReasonPending, "No report yet from some", nodes)
		}
		for i := range 10 {
			w.want(pending(10 * i))
			time.Sleep(100 * time.Millisecond)
			require.Zero(t, w.server.counts()[1], "neither that it is pending, nor on how many nodes")
		}
		w.want(row("web", tables.ConditionTrue, "Programmed", "", 100))
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, "True Programmed", says())
		require.Equal(t, 1, w.server.counts()[1])
		time.Sleep(10 * time.Second)

		w.want(pending(50))
		time.Sleep(time.Second)
		w.want(row("web", tables.ConditionTrue, "Programmed", "", 100))
		time.Sleep(10 * time.Minute)
		require.Equal(t, 1, w.server.counts()[1], "that it was pending for a moment is not told")

		w.want(pending(50))
		time.Sleep(3 * time.Second)
		require.Equal(t, "Unknown Pending", says())
		w.want(row("web", tables.ConditionTrue, "Programmed", "", 100))
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, "True Programmed", says())
		require.Equal(t, 3, w.server.counts()[1])

		for i := range 20 { // a minute
			w.want(pending(i))
			time.Sleep(2500 * time.Millisecond)
			w.want(row("web", tables.ConditionTrue, "Programmed", "", 100))
			time.Sleep(500 * time.Millisecond)
		}
		require.LessOrEqual(t, w.server.counts()[1]-3, 2*60/5+2, "twice in 5 s at most")
	})
}

// The next operator that leads reads each object once, writes nothing that is right, and
// does not tell again what the status says.
func TestNextLeader(t *testing.T) {
	in(t, func(w *world) {
		rows := func() (all []*tables.ObjectStatus) {
			for i := range 100 {
				all = append(all, row(fmt.Sprintf("policy-%d", i), tables.ConditionFalse, "Failed", "node-1: full", 99))
			}
			return append(all, &tables.ObjectStatus{
				Policy:   tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "web"}},
				Problems: []tables.Problem{{Reason: "Invalid", Message: "spec"}}, Reconciled: tables.Pending(),
			})
		}
		w.want(rows()...)
		time.Sleep(time.Minute)
		require.Equal(t, [2]int{100, 100}, w.server.counts(), "a NetworkPolicy has no status")
		require.Len(t, w.server.told(), 101)
		w.stop()

		next := start(w.T, w.server)
		defer next.stop()
		next.want(rows()...)
		time.Sleep(time.Minute)
		require.Equal(t, [2]int{200, 100}, w.server.counts())
		require.Len(t, w.server.told(), 102, "the NetworkPolicy is unknown")
	})
}

// What cannot be written is tried again, more and more rarely, and not at all if the
// objects have no status: then Events tell.
func TestFailures(t *testing.T) {
	group := schema.GroupResource{Group: "cilium.io", Resource: "ciliumegressgatewaypolicies"}
	for name, tc := range map[string]struct {
		err   error
		tries int // in an hour, at most
		level cell.Level
		told  int
	}{
		"conflict":       {apierrors.NewConflict(group, "web", errors.New("changed")), 30, cell.StatusDegraded, 0},
		"missing right":  {apierrors.NewForbidden(group, "web", errors.New("no")), 30, cell.StatusDegraded, 0},
		"no subresource": {apierrors.NewNotFound(group, "web"), 1, cell.StatusOK, 2},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(w *world) {
				w.server.fail(tc.err)
				w.want(row("web", tables.ConditionFalse, "Failed", "full", 1), row("other", tables.ConditionFalse, "Failed", "full", 1))
				time.Sleep(time.Hour - time.Second)
				require.LessOrEqual(t, w.server.counts()[1], 2*tc.tries)
				require.Equal(t, reconciler.StatusKindError, w.row("web").Status.Kind)
				require.Equal(t, tc.level, w.level())
				require.Len(t, w.server.told(), tc.told)
				if tc.told > 0 {
					require.Equal(t, 1, w.server.counts()[1], "one object has told of all")
					return
				}
				w.server.fail(nil)
				time.Sleep(10 * time.Minute)
				require.Equal(t, reconciler.StatusKindDone, w.row("web").Status.Kind)
				require.Equal(t, cell.StatusOK, w.level())
				require.Len(t, w.server.told(), 2)
			})
		})
	}
}

// An API server that has just started knows no roles yet, and forbids everything.
func TestForbiddenForAMoment(t *testing.T) {
	in(t, func(w *world) {
		w.server.fail(apierrors.NewForbidden(schema.GroupResource{Resource: "ciliumegressgatewaypolicies"}, "web", errors.New("no")))
		w.want(row("web", tables.ConditionTrue, "Programmed", "", 1))
		time.Sleep(2 * time.Second)
		w.server.fail(nil)
		time.Sleep(10 * time.Second)
		require.Equal(t, reconciler.StatusKindDone, w.row("web").Status.Kind)
	})
}

// A path that was not found for a moment does not mean that there is no status forever.
func TestStatuslessForAMoment(t *testing.T) {
	in(t, func(w *world) {
		w.server.fail(apierrors.NewNotFound(schema.GroupResource{}, "web"))
		w.want(row("web", tables.ConditionTrue, "Programmed", "", 1),
			row("other", tables.ConditionTrue, "Programmed", "", 1))
		time.Sleep(time.Minute)
		w.server.fail(nil)
		time.Sleep(2 * time.Hour)
		for _, name := range []string{"web", "other"} {
			require.Equal(t, reconciler.StatusKindDone, w.row(name).Status.Kind)
			require.Len(t, w.server.says(t, "/"+name).Conditions, 2)
		}
		require.Equal(t, 3, w.server.counts()[1])
	})
}

// That an object goes between the look at it and the write does not mean that its
// kind has no status.
func TestGoneBeforeTheWrite(t *testing.T) {
	in(t, func(w *world) {
		w.server.before(func() {
			if w.server.gone == nil {
				w.server.gone = map[string]bool{"short": true}
				w.delete("short")
				time.Sleep(10 * time.Millisecond) // its row is forgotten before the answer comes
			}
		})
		w.want(row("short", tables.ConditionTrue, "Programmed", "", 1))
		time.Sleep(time.Second)
		w.want(row("web", tables.ConditionTrue, "Programmed", "", 1))
		time.Sleep(time.Minute)
		require.Equal(t, reconciler.StatusKindDone, w.row("web").Status.Kind)
		require.Len(t, w.server.says(t, "/web").Conditions, 2)
	})
}

// An object that cannot be written is no trouble any more once it is gone, also if it
// goes while it is written.
func TestGoneWhileFailing(t *testing.T) {
	in(t, func(w *world) {
		w.server.fail(errors.New("too busy"))
		w.server.before(func() {
			w.delete("web")
			time.Sleep(10 * time.Millisecond)
		})
		w.want(row("web", tables.ConditionTrue, "Programmed", "", 1))
		time.Sleep(time.Hour)
		require.Equal(t, 1, w.server.counts()[1])
		require.Equal(t, cell.StatusOK, w.level())
		w.mu.Lock()
		defer w.mu.Unlock()
		require.Empty(t, w.written)
		require.Empty(t, w.reported)
	})
}

// An object that is made again with the name of another has its problems told.
func TestMadeAgain(t *testing.T) {
	in(t, func(w *world) {
		policy := tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "web"}}
		for _, uid := range []string{"uid-1", "uid-2"} { // with no time between without a row
			w.want(&tables.ObjectStatus{
				Policy: policy, UID: uid, Problems: []tables.Problem{{Reason: "Invalid", Message: "spec"}}, Reconciled: tables.Pending(),
			})
			time.Sleep(time.Minute)
		}
		require.Len(t, w.server.told(), 2)
	})
}

func (w *world) delete(name string) {
	wtxn := w.DB.WriteTxn(w.Desired)
	defer wtxn.Abort()
	_, _, err := w.Desired.Delete(wtxn, row(name, tables.ConditionTrue, "", "", 0))
	require.NoError(w, err)
	wtxn.Commit()
}
