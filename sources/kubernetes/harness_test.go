// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// agent is the reflectors of one agent.
type agent struct {
	t      testing.TB
	db     *statedb.DB
	tables objects.Tables
	health *cell.SimpleHealth
	kinds  map[string]*objects.Kind
}

// newAgent creates the reflectors for an API. They run until the test ends.
func newAgent(t testing.TB, source string, connect func([]*objects.Kind) api) *agent {
	t.Helper()
	db := statedb.New()
	require.NoError(t, db.Start())
	t.Cleanup(func() { require.NoError(t, db.Stop()) })
	tbls, err := objects.NewTables(db, tables.LocalNode{})
	require.NoError(t, err)
	_, health := cell.NewSimpleHealth()
	a := &agent{t: t, db: db, tables: tbls, health: health, kinds: map[string]*objects.Kind{}}

	kinds := objects.Kinds(source)
	api := connect(kinds)
	p := params{DB: db, Tables: tbls, Log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, k := range kinds {
		a.kinds[k.Resource] = k
		r := newReflector(p, api, k)
		wg.Go(func() {
			if err := r.run(ctx, health.NewScope(k.Resource)); err != nil {
				t.Errorf("%s: %v", k.Resource, err)
			}
		})
	}
	t.Cleanup(func() { stop(); wg.Wait() })
	return a
}

func newFakeAgent(t testing.TB, source string, f *FakeAPI) *agent {
	return newAgent(t, source, func([]*objects.Kind) api { return f })
}

// eventually waits until a condition holds of a snapshot.
func (a *agent) eventually(holds func(txn statedb.ReadTxn) error) {
	a.t.Helper()
	var err error
	await.True(a.t, func() bool { err = holds(a.db.ReadTxn()); return err == nil }, "%v", lazy{&err})
}

type lazy struct{ err *error }

func (l lazy) String() string { return (*l.err).Error() }

// state waits until a resource is in a state, and returns its row.
func (a *agent) state(resource, state string) (row *tables.ObjectSource) {
	a.t.Helper()
	k := a.kinds[resource]
	a.eventually(func(txn statedb.ReadTxn) error {
		var found bool
		if row, _, found = a.tables.Sources.Get(txn, tables.ObjectSourceByName(k.Source())); found && row.State == state {
			return nil
		}
		return errors.New(resource + " is not " + state)
	})
	return row
}

// endpoints waits until these are all the endpoints.
func (a *agent) endpoints(names ...string) {
	a.t.Helper()
	a.eventually(func(txn statedb.ReadTxn) error {
		got := statedb.Collect(statedb.Map(a.tables.Endpoints.All(txn), func(e *tables.Endpoint) string { return e.Name.Name }))
		if len(got) != len(names) {
			return errors.New("endpoints: " + join(got))
		}
		for i := range got {
			if got[i] != names[i] {
				return errors.New("endpoints: " + join(got))
			}
		}
		return nil
	})
}

// policies waits until these are all the egress policies.
func (a *agent) policies(names ...string) {
	a.t.Helper()
	a.eventually(func(txn statedb.ReadTxn) error {
		got := statedb.Collect(statedb.Map(a.tables.EgressPolicies.All(txn), func(p *tables.EgressPolicy) string { return p.Name }))
		if !slices.Equal(got, names) && len(got)+len(names) > 0 {
			return errors.New("policies: " + join(got))
		}
		return nil
	})
}

func join(names []string) string {
	var s string
	for _, n := range names {
		s += n + " "
	}
	return s
}

func (a *agent) initialized(table statedb.TableMeta) bool {
	done, _ := table.Initialized(a.db.ReadTxn())
	return done
}

func (a *agent) level(resource string) cell.Level {
	if h := a.health.GetChild(resource); h != nil {
		h.Lock()
		defer h.Unlock()
		return h.Level
	}
	return ""
}

// awaitLevel waits until the health of a resource has a level.
func (a *agent) awaitLevel(resource string, level cell.Level) {
	a.t.Helper()
	a.eventually(func(statedb.ReadTxn) error {
		if got := a.level(resource); got != level {
			return errors.New(resource + " is " + string(got))
		}
		return nil
	})
}

// pods is a manifest of pods in namespace default.
func pods(names ...string) []byte {
	var text string
	for _, n := range names {
		text += "---\n{apiVersion: v1, kind: Pod, metadata: {name: " + n + "}}\n"
	}
	return []byte(text)
}
