// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/testdata/await"
)

// pair is two maps of which each has gates that look at the other: users name
// a rule, which must be there as long as they do.
type pair struct {
	t             *testing.T
	db            *statedb.DB
	control       *Control
	memory        *bpf.Memory
	readiness     statedb.RWTable[*tables.ClassReadiness]
	desired       map[string]statedb.RWTable[*testRow]
	mirrors       map[string]statedb.RWTable[*testEntry]
	running       sync.WaitGroup
	brokenPromise string
}

func newPair(t *testing.T) *pair {
	p := &pair{
		t: t, db: statedb.New(), memory: bpf.NewMemory(),
		desired: map[string]statedb.RWTable[*testRow]{}, mirrors: map[string]statedb.RWTable[*testEntry]{},
	}
	var err error
	for _, name := range []string{"users", "rules"} {
		p.desired[name], err = statedb.NewTable(p.db, name, testRowIndex)
		require.NoError(t, err)
		p.mirrors[name], err = statedb.NewTable(p.db, "map-"+name, statedb.Index[*testEntry, prefixKey]{
			Name:       "key",
			FromObject: func(e *testEntry) index.KeySet { return index.NewKeySet(mapKeyBytes(e.Key)) },
			FromKey:    mapKeyBytes,
			FromString: index.FromString,
			Unique:     true,
		})
		require.NoError(t, err)
	}
	p.readiness, err = tables.NewClassReadinessTable(p.db)
	require.NoError(t, err)
	table, err := tables.NewBPFMapTable(p.db)
	require.NoError(t, err)
	p.control, err = newControl(controlParams{Options: Options{RetryMin: time.Millisecond, RetryMax: 2 * time.Millisecond}, Table: table})
	require.NoError(t, err)
	require.NoError(t, p.db.Start())
	p.memory.OnWrite(p.check)
	return p
}

// check finds users whose rule is not in the map.
func (p *pair) check(w bpf.Write, r bpf.Reader) {
	for user, rule := range bpf.All[prefixKey, number](r, "users") {
		if _, ok := bpf.Get[prefixKey, number](r, "rules", ruleKey(rule)); !ok && p.brokenPromise == "" {
			p.brokenPromise = fmt.Sprintf("after %v, %v has rule %v, which is not there", w, user, rule)
		}
	}
}

func ruleKey(rule number) prefixKey { return key(32, byte(rule)) }

func (p *pair) run(ctx context.Context, name string, gate func(statedb.ReadTxn, Op[prefixKey, number]) (any, string)) {
	m, err := bpf.Open[prefixKey, number](p.memory, bpf.Spec{Name: name, Type: bpf.TypeHash, MaxEntries: 100})
	require.NoError(p.t, err)
	l, err := newLoop(p.db, slog.New(slog.DiscardHandler), p.control, Config[*testRow, prefixKey, number]{
		Map: m, Desired: p.desired[name], Entries: p.mirrors[name],
		MapKey:     func(r *testRow) prefixKey { return r.Key },
		MapValue:   func(r *testRow) number { return r.Value },
		WithStatus: func(r *testRow, s reconciler.Status) *testRow { c := *r; c.Status = s; return &c },
		GetStatus:  func(r *testRow) reconciler.Status { return r.Status },
		Plan:       PlanAny[prefixKey, number](),
		Gate:       perRound(gate),
		Opener:     OpenedByReadiness(p.readiness),
	})
	require.NoError(p.t, err)
	p.running.Go(func() {
		health, _ := cell.NewSimpleHealth()
		if err := l.run(ctx, health); err != nil {
			p.t.Error(err)
		}
	})
}

// The gates of two maps that look at each other never let both through, though
// the maps are written at the same time.
func TestGatesExclude(t *testing.T) {
	p := newPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer func() {
		cancel()
		p.running.Wait()
		p.db.Stop()
	}()
	p.run(ctx, "users", func(txn statedb.ReadTxn, op Op[prefixKey, number]) (any, string) {
		if op.Delete() {
			return bpf.ClassKey{}, ""
		}
		_, _, wanted := p.desired["rules"].Get(txn, testRowIndex.Query(ruleKey(*op.Value)))
		_, _, there := p.mirrors["rules"].Get(txn, tables.MapEntryByKey[prefixKey, number](ruleKey(*op.Value)))
		if wanted && there {
			return bpf.ClassKey{}, ""
		}
		return bpf.ClassKey{}, "its rule"
	})
	p.run(ctx, "rules", func(txn statedb.ReadTxn, op Op[prefixKey, number]) (any, string) {
		for user := range p.mirrors["users"].All(txn) {
			if op.Delete() && ruleKey(user.Value) == op.Key {
				return bpf.ClassKey{}, "its users"
			}
		}
		return bpf.ClassKey{}, ""
	})
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		// Each change is sound by itself: users name rules that are wanted.
		rule, other := number(1+rnd.IntN(3)), number(0)
		wtxn := p.db.WriteTxn(p.desired["users"], p.desired["rules"])
		_, _, on := p.desired["rules"].Get(wtxn, testRowIndex.Query(ruleKey(rule)))
		if on {
			_, _, err := p.desired["rules"].Delete(wtxn, row(ruleKey(rule), 0))
			require.NoError(t, err)
			for r := range p.desired["rules"].All(wtxn) {
				other = number(r.Key.Addr[0])
			}
			for user := range p.desired["users"].All(wtxn) {
				if user.Value == rule && other == 0 {
					p.desired["users"].Delete(wtxn, user)
				} else if user.Value == rule {
					p.desired["users"].Insert(wtxn, row(user.Key, other))
				}
			}
		} else {
			p.desired["rules"].Insert(wtxn, row(ruleKey(rule), 1))
			for i := range byte(3) {
				p.desired["users"].Insert(wtxn, row(key(32, 100, i), rule))
			}
		}
		wtxn.Commit()
		time.Sleep(time.Duration(rnd.IntN(100)) * time.Microsecond) // another moment of the reconcilers
	}
	await.True(t, func() bool {
		agree := true
		p.memory.Read(func(r bpf.Reader) {
			for name, table := range p.desired {
				n := 0
				for row := range table.All(p.db.ReadTxn()) {
					v, _ := bpf.Get[prefixKey, number](r, name, row.Key)
					agree = agree && v == row.Value
					n++
				}
				for range bpf.All[prefixKey, number](r, name) {
					n--
				}
				agree = agree && n == 0
			}
		})
		return agree
	})
	p.memory.Read(func(bpf.Reader) { require.Empty(t, p.brokenPromise) })
}
