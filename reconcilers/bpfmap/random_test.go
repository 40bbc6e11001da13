// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// randomRun drives a reconciler through random events, one of which is a new
// agent on the old map, while writes fail and, if it is a tight one, the map's
// size varies. When the faults stop and time goes by, with no further event,
// all is as desired. In a prefix map that always has room, an address finds what
// it found at the start of a round or what is desired, after every single write.
func randomRun(t *testing.T, seed uint64, spec bpf.Spec, plan Plan[prefixKey, number], gated, tight bool) {
	rnd := rand.New(rand.NewPCG(seed, 4))
	memory := bpf.NewMemory()
	faulty := true
	memory.Inject(func(string, bpf.Op) error {
		if faulty && rnd.IntN(10) == 0 {
			return unix.EPERM
		}
		return nil
	})
	rows := map[prefixKey]number{}
	classes := map[uint32]bool{}
	var l *testLoop
	config := testConfig{memory: memory, spec: spec, plan: plan}
	if gated {
		config.gate = func(txn statedb.ReadTxn, op Op[prefixKey, number]) (any, string) {
			if op.Delete() {
				return bpf.ClassKey{}, ""
			}
			class := bpf.ClassKey{Role: bpf.RoleEgress, Number: uint32(*op.Value) % 3}
			if r, _, found := l.readiness.Get(txn, tables.ClassReadinessByKey(class)); !found || !r.Registered {
				return class, "class " + class.String()
			}
			return class, ""
		}
	}
	setReady := func(class uint32, ready bool) {
		classes[class] = ready
		wtxn := l.db.WriteTxn(l.readiness)
		l.readiness.Insert(wtxn, &tables.ClassReadiness{
			ClassKey: bpf.ClassKey{Role: bpf.RoleEgress, Number: class}, Wanted: true, Registered: ready,
		})
		wtxn.Commit()
	}
	var atStart map[prefixKey]number // of the round
	meddling := false
	memory.OnWrite(func(w bpf.Write, r bpf.Reader) {
		if tight || meddling || spec.Type != bpf.TypeLPM {
			return
		}
		for i := range byte(12) {
			addr := key(32, 10, i%2, i/2%2, i/4)
			now, _ := bpf.Match[prefixKey, number](r, spec.Name, addr)
			if before, after := longest(atStart, addr), longest(rows, addr); now.Value != before && now.Value != after {
				t.Fatalf("seed %d: after %v, %v finds %v; before the round %v, desired %v", seed, w, addr, now.Value, before, after)
			}
		}
	})
	l = newTestLoop(t, config)
	l.beforeStep = func() { atStart = l.held() }
	l.start()
	for range 60 {
		switch n := rnd.IntN(20); {
		case n < 13:
			var batch []*testRow
			for range 1 + rnd.IntN(4) {
				length := []uint32{0, 8, 16, 24, 32}[rnd.IntN(5)]
				k := bpf.Truncated(key(32, 10, byte(rnd.IntN(2)), byte(rnd.IntN(2)), byte(rnd.IntN(3))), int(length))
				value := number(rnd.IntN(6))
				if value == 0 {
					delete(rows, k)
				} else {
					rows[k] = value
				}
				batch = append(batch, row(k, value))
			}
			l.change(batch...)
		case n < 15:
			setReady(rnd.Uint32N(3), rnd.IntN(2) == 0)
		case n < 16:
			if tight {
				memory.Resize(spec.Name, 1+rnd.Uint32N(16))
			}
		case n < 18: // something else meddles
			faulty, meddling = false, true
			if k := key(32, 10, 0, 0, byte(rnd.IntN(3))); rnd.IntN(2) == 0 {
				l.target.Update([]prefixKey{k}, []number{77})
			} else {
				l.target.Delete([]prefixKey{k})
			}
			faulty, meddling = true, false
			l.beforeStep()
			_, err := l.audit(l.now)
			require.NoError(t, err)
		default:
			l.wait(time.Duration(rnd.IntN(200)) * time.Millisecond)
		}
		if rnd.IntN(3) > 0 {
			l.round()
		}
	}
	// The faults stop: there is room, gates are open, writes succeed.
	faulty = false
	if tight {
		room := len(rows)
		if plan.Close != nil {
			room *= 2 // denials are not deleted before what replaces them
		}
		memory.Resize(spec.Name, uint32(max(1, room)))
	}
	for class := range uint32(3) {
		setReady(class, true)
	}
	l.round()
	l.wait(5 * time.Minute)
	l.requireSettled("seed", seed)
	require.Equal(t, rows, l.held(), "seed %d", seed)
	if t.Failed() {
		t.Log(l.logged.String())
	}
}

// longest returns the value of the longest of the keys that covers an address.
func longest(state map[prefixKey]number, addr prefixKey) number {
	for length := 32; length >= 0; length-- {
		if v, ok := state[bpf.Truncated(addr, length)]; ok {
			return v
		}
	}
	return 0
}

func TestRandom(t *testing.T) {
	for _, gated := range []bool{false, true} {
		for _, tight := range []bool{false, true} {
			t.Run(fmt.Sprintf("gated=%v/tight=%v", gated, tight), func(t *testing.T) {
				for seed := range uint64(30) {
					spec := bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 1000}
					randomRun(t, seed, spec, PlanPrefix[prefixKey, number](), gated, tight)
					spec.Type = bpf.TypeHash
					randomRun(t, seed, spec, PlanAny[prefixKey, number](), gated, tight)
					randomRun(t, seed, spec, PlanPrecedence(prefixPrecedence), gated, tight)
				}
			})
		}
	}
}

// prefixPrecedence is that of a prefix map whose values are precedences, the
// odd ones denying.
var prefixPrecedence = Precedence[prefixKey, number]{
	Of:     func(n number) int { return int(n) },
	Denies: func(n number) bool { return n%2 == 1 },
	Length: func(k prefixKey) int { return int(k.PrefixLen) },
	Covers: func(k prefixKey) iter.Seq[prefixKey] {
		return func(yield func(prefixKey) bool) {
			for length := int(k.PrefixLen); length >= 0; length-- {
				if !yield(bpf.Truncated(k, length)) {
					return
				}
			}
		}
	},
	Overlaps: func(a, b prefixKey) bool {
		short := int(min(a.PrefixLen, b.PrefixLen))
		return bpf.Truncated(a, short) == bpf.Truncated(b, short)
	},
	Forbid: func(entry, _ number) number { return entry | 1 },
	Unit:   func(prefixKey) any { return 0 },
}

// A denial that does not fit closes the allow that would decide instead, which
// shows in its status, and opens again when the denial is in.
func TestClose(t *testing.T) {
	l := newTestLoop(t, testConfig{
		spec: bpf.Spec{Name: "test", Type: bpf.TypeLPM, MaxEntries: 2},
		plan: PlanPrecedence(prefixPrecedence),
	})
	l.start()
	allow, denial, unrelated := key(8, 10), key(16, 10, 1), key(8, 11)
	l.change(row(allow, 2), row(unrelated, 2))
	l.round()
	l.change(row(denial, 5))
	l.round()
	require.Equal(t, map[prefixKey]number{allow: 3, unrelated: 2}, l.held())
	require.Equal(t, "Error map full (2 entries)", l.status(denial))
	require.Equal(t, "Pending waiting for an overlapping entry to be written first", l.status(allow))
	require.Equal(t, "Done", l.status(unrelated))
	require.Equal(t, "3 other", l.entry(allow))
	l.change(row(unrelated, 0))
	l.round()
	l.wait(time.Minute)
	l.requireSettled()
	require.Equal(t, map[prefixKey]number{allow: 2, denial: 5}, l.held())
}
