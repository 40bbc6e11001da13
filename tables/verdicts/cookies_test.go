// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// cookieWorld is a world with the derivation of cookies, and the mirror of verdicts.
type cookieWorld struct {
	*world
	params  cookieParams
	kernel  tablestest.Table[*tables.VerdictMirror]
	cookies *tablestest.Rule[uint32]
}

func newCookieWorld(t *testing.T) *cookieWorld {
	w := &cookieWorld{world: newWorld(t)}
	w.kernel = tablestest.Open(t, w.db, tables.NewVerdictMirrorTable)
	w.params = cookieParams{
		Verdicts: w.rule.Verdicts, Kernel: w.kernel,
		Output: tablestest.Open(t, w.db, tables.NewRuleCookieTable),
	}
	w.cookies = tablestest.NewRule(t, w.db, w.params.declare())
	return w
}

func (w *cookieWorld) derive() {
	w.work()
	w.cookies.Work()
}

// program has the kernel, by its mirror, be as desired.
func (w *cookieWorld) program() {
	wtxn := w.db.WriteTxn(w.kernel)
	defer wtxn.Commit()
	require.NoError(w, w.kernel.DeleteAll(wtxn))
	for v := range w.rule.Verdicts.All(wtxn) {
		m := &tables.VerdictMirror{Key: v.Key, Value: v.Value, Present: true}
		_, _, err := w.kernel.Insert(wtxn, m)
		require.NoError(w, err)
	}
}

// rows returns what cookies stand for: for each, its rules as fields of objects.
func (w *cookieWorld) rows() (rows [][]string) {
	for c := range w.params.Output.All(w.db.ReadTxn()) {
		require.Equal(w, tables.CookieOf(c.Rules), c.Cookie)
		var fields []string
		for _, id := range c.Rules {
			fields = append(fields, id.Field)
		}
		rows = append(rows, fields)
	}
	return rows
}

// A cookie is known while a verdict is desired that has it, and as long as the kernel has
// one.
func TestCookies(t *testing.T) {
	w := newCookieWorld(t)
	w.put(class(1, []uint32{1}), allowing(1, nil, 1))
	w.derive()
	known := [][]string{{"spec.ingress[-1]"}, {"spec.ingress[0]"}}
	require.ElementsMatch(t, known, w.rows())
	w.program()

	w.remove(allowing(1, nil, 1))
	w.derive()
	require.Zero(t, w.rule.Verdicts.NumObjects(w.db.ReadTxn()))
	require.ElementsMatch(t, known, w.rows(), "packets may still meet it")
	w.program()
	w.derive()
	require.Empty(t, w.rows())
}

// A rule that is elsewhere in its object now keeps its cookie.
func TestRuleMoves(t *testing.T) {
	w := newCookieWorld(t)
	before := allowing(1, nil, 1)
	w.put(class(1, []uint32{1}), before)
	w.derive()
	after := allowing(2, nil, 1)
	after.Rules[1].Field = "specs[0].ingress[0]"
	w.put(after)
	w.derive()
	require.ElementsMatch(t, [][]string{{"spec.ingress[-1]"}, {"specs[0].ingress[0]"}}, w.rows())
}

// If digests collide, both sets of rules are named.
func TestCookiesCollide(t *testing.T) {
	w := newCookieWorld(t)
	a, b := ruleAt("a", bpf.DirectionIngress, 0), ruleAt("b", bpf.DirectionIngress, 0)
	w.put(ruleset(1, a, b))
	wtxn := w.db.WriteTxn(w.rule.Verdicts)
	for i, rules := range [][]tables.RuleID{{a.RuleID}, {b.RuleID}} {
		v := &tables.Verdict{
			Key:   bpf.VerdictKeyOf(uint32(100+i), 0, 0, 0),
			Value: bpf.VerdictValue{Cookie: 7}, Rules: rules,
		}
		_, _, err := w.rule.Verdicts.Insert(wtxn, v)
		require.NoError(t, err)
	}
	wtxn.Commit()
	w.derive()
	row, _, found := w.params.Output.Get(w.db.ReadTxn(), tables.RuleCookieByNumber(7))
	require.True(t, found)
	require.Equal(t, []tables.RuleID{a.RuleID, b.RuleID}, row.Rules)
}

// At rest cookies are those of the verdicts that are desired or in the kernel.
func TestRandomCookies(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 2))
		w := newCookieWorld(t)
		var live []any
		for number := range uint32(40) {
			if random.IntN(3) == 0 && len(live) > 3 {
				w.remove(live[0])
				live = live[1:]
			} else {
				row := any(randomRuleset(random, number+1))
				if random.IntN(2) == 0 {
					row = randomClass(random, number+1)
				}
				w.put(row)
				live = append(live, row)
			}
			if random.IntN(3) == 0 {
				w.program()
			}
			if random.IntN(3) > 0 {
				continue
			}
			w.derive()
			txn := w.db.ReadTxn()
			want, got := map[uint32]bool{}, map[uint32]bool{}
			for v := range w.rule.Verdicts.All(txn) {
				want[v.Value.Cookie] = true
			}
			for m := range w.kernel.All(txn) {
				want[m.Value.Cookie] = true
			}
			delete(want, 0)
			for c := range w.params.Output.All(txn) {
				got[c.Cookie] = true
				require.Equal(t, tables.CookieOf(c.Rules), c.Cookie)
			}
			require.Equal(t, want, got, fmt.Sprint("seed ", seed))
		}
	}
}
