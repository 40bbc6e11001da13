// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"fmt"
	"github.com/sluice-net/sluice/tables"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// randomRun drives a reconciler through random events, while writes fail and, if it is a
// tight one, the map's size varies. After every single write, what the kernel has is in the
// mirror, and nothing was written that refers to what was never complete. When the faults
// stop and time goes by, with no further event, all is as desired.
func randomRun(t *testing.T, seed uint64, typ bpf.Type, after time.Duration, tight bool) {
	rnd := rand.New(rand.NewPCG(seed, 4))
	faulty, meddling := true, false
	rows, complete := map[prefixKey]number{}, map[uint32]bool{}
	changing := map[uint32]bool{} // objects that were complete at some time since the last round began
	l := newTestLoop(t, bpf.Spec{Name: "test", Type: typ, MaxEntries: 1000}, gated,
		func(_ *testLoop, cfg *testConfig) { cfg.DeleteAfter = after })
	l.beforeRound = func() {
		clear(changing)
		for n, is := range complete {
			changing[n] = is
		}
	}
	l.memory.Inject(func(string, bpf.Op) error {
		if faulty && rnd.IntN(10) == 0 {
			return unix.EPERM
		}
		return nil
	})
	l.memory.OnWrite(func(w bpf.Write, r bpf.Reader) {
		if meddling {
			return
		}
		if value, ok := w.Value.(number); ok && w.Err == nil {
			require.True(t, changing[uint32(value)], "seed %d: %v", seed, w)
		}
		txn := l.db.ReadTxn()
		for k, v := range bpf.All[prefixKey, number](r, "test") {
			m, _, found := l.Mirror.Get(txn, tables.MirrorByKey[prefixKey, number](k))
			require.True(t, found, "seed %d: %v: no mirror of %v", seed, w, k)
			require.Contains(t, m.Values(), v, "seed %d: %v", seed, w)
		}
		if k := w.Key.(prefixKey); w.Value == nil && w.Err == nil {
			m, _, found := l.Mirror.Get(txn, tables.MirrorByKey[prefixKey, number](k))
			require.True(t, found && m.Busy && m.Deleting, "seed %d: %v", seed, w)
		}
	})
	for range 60 {
		switch n := rnd.IntN(20); {
		case n < 12:
			var batch []*testRow
			for range 1 + rnd.IntN(4) {
				length := []uint32{0, 8, 16, 24, 32}[rnd.IntN(5)]
				k := key(32, 10, byte(rnd.IntN(2)), byte(rnd.IntN(2)), byte(rnd.IntN(3)))
				k = bpf.Truncated(k, int(length))
				value := number(rnd.IntN(6))
				if rows[k] = value; value == 0 {
					delete(rows, k)
				}
				batch = append(batch, row(k, value))
			}
			l.change(batch...)
		case n < 15:
			number := 1 + rnd.Uint32N(5)
			complete[number] = rnd.IntN(3) > 0
			l.complete(number, complete[number])
		case n < 16:
			if tight {
				l.memory.Resize("test", 1+rnd.Uint32N(16))
			}
		case n < 17: // something else meddles
			faulty, meddling = false, true
			if k := key(32, 10, 0, 0, byte(rnd.IntN(3))); rnd.IntN(2) == 0 {
				l.Map.Update([]prefixKey{k}, []number{77})
			} else {
				l.Map.Delete([]prefixKey{k})
			}
			l.startAudit()
			for l.audit != nil {
				l.continueAudit()
			}
			faulty, meddling = true, false
		default:
			l.wait(time.Duration(rnd.IntN(200)) * time.Millisecond)
		}
		if rnd.IntN(3) > 0 {
			l.rounds()
		}
	}
	faulty = false // there is room, everything is complete, writes succeed
	l.memory.Resize("test", 1000)
	for n := range uint32(6) {
		complete[n] = true
		l.complete(n, true)
	}
	l.rounds()
	l.wait(5 * time.Minute)
	l.requireSettled("seed", seed)
	require.Equal(t, rows, l.held(), "seed %d", seed)
}

func TestRandom(t *testing.T) {
	for _, typ := range []bpf.Type{bpf.TypeHash, bpf.TypeLPM} {
		for _, after := range []time.Duration{0, Grace} {
			for _, tight := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/after=%s/tight=%v", typ, after, tight), func(t *testing.T) {
					for seed := range uint64(30) {
						randomRun(t, seed, typ, after, tight)
					}
				})
			}
		}
	}
}
