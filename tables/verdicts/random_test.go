// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

const (
	ports     = 8 // of packets, and one more
	selectors = 4
)

// protocols of packets: with types of both ICMPs, with ports, and one that no rule names.
var protocols = []uint8{1, 58, 6, 17, 132}

// judge is the verdict from first principles: what a ruleset says of one packet.
func judge(
	r *tables.Ruleset, c *tables.Class, q Question,
) (deny, isDefault bool, by []tables.RuleID) {
	if c.Precision == tables.Refused {
		return true, true, nil
	}
	var denies, allows, defaults []tables.RuleID
	for _, rule := range r.Rules {
		selected := rule.AnyPeer || slices.ContainsFunc(rule.Peers, c.Selects) ||
			rule.DeniesCoarse && c.Precision == tables.Coarse
		switch {
		case rule.Direction != q.Direction:
		case rule.DefaultDeny:
			defaults = append(defaults, rule.RuleID)
		case !selected || !isAt(rule, c, q):
		case rule.Deny:
			denies = append(denies, rule.RuleID)
		default:
			allows = append(allows, rule.RuleID)
		}
	}
	switch {
	case denies != nil:
		return true, false, denies
	case allows != nil:
		return false, false, allows
	}
	return defaults != nil || r.AlwaysDeny, true, defaults
}

// isAt reports whether a rule is about the ports of a packet.
func isAt(rule *tables.Rule, c *tables.Class, q Question) bool {
	if rule.NoPorts {
		return false
	}
	return len(rule.Ports) == 0 || slices.ContainsFunc(rule.Ports, func(p tables.PolicyPort) bool {
		if p.Name != "" {
			named := tables.NamedPort{Name: p.Name, Protocol: p.Protocol, Port: q.Port}
			return p.Protocol == q.Protocol && slices.Contains(c.Ports, named)
		}
		return p.Protocol == q.Protocol && p.First <= q.Port && q.Port <= p.Last
	})
}

func someOf(random *rand.Rand) (some []uint32) {
	for s := range uint32(selectors) {
		if random.IntN(3) == 0 {
			some = append(some, s+1)
		}
	}
	return some
}

func randomRuleset(random *rand.Rand, number uint32) *tables.Ruleset {
	var rules []*tables.Rule
	for i := range random.IntN(8) {
		rule := ruleAt(fmt.Sprint("p", i%3), bpf.Direction(random.IntN(2)), i)
		switch random.IntN(5) {
		case 0:
			rule.DefaultDeny, rule.Item = true, int32(-1-i)
		case 1:
			rule.AnyPeer = true
		default:
			rule.Peers = someOf(random) // perhaps none
		}
		if !rule.DefaultDeny {
			rule.Deny = random.IntN(3) == 0
			rule.DeniesCoarse = rule.Deny && !rule.AnyPeer && random.IntN(2) == 0
			for range random.IntN(3) {
				rule.Ports = append(rule.Ports, randomPort(random, rule.Direction))
			}
			rule.NoPorts = len(rule.Ports) == 0 && random.IntN(8) == 0
		}
		rules = append(rules, rule)
	}
	r := ruleset(number, rules...)
	r.AlwaysDeny = random.IntN(4) == 0
	return r
}

func randomPort(random *rand.Rand, d bpf.Direction) tables.PolicyPort {
	port := tables.PolicyPort{Protocol: protocols[random.IntN(4)]}
	switch random.IntN(5) {
	case 0:
		port.Last = 65535
	case 1, 2:
		if d == bpf.DirectionEgress {
			port.Name = []string{"dns", "web"}[random.IntN(2)]
			break
		}
		fallthrough
	default:
		port.First = uint16(random.IntN(ports))
		port.Last = port.First + uint16(random.IntN(ports-int(port.First)))
	}
	return port
}

func randomClass(random *rand.Rand, number uint32) *tables.Class {
	if random.IntN(6) == 0 {
		return refusedClass(number)
	}
	var named []tables.NamedPort
	for range random.IntN(4) {
		named = append(named, tables.NamedPort{
			Name: []string{"dns", "web"}[random.IntN(2)], Protocol: protocols[random.IntN(4)],
			Port: uint16(random.IntN(ports)),
		})
	}
	c := class(number, someOf(random), named...)
	if random.IntN(4) == 0 {
		c.Precision = tables.Coarse
	}
	return c
}

// history is what steps must not contradict.
type history struct {
	digests map[uint32]bpf.Digest // of all sets ever
	gone    map[uint32]bool       // sets that were deleted
	rows    map[bpf.PolicyKey]*tables.PolicyEntry
}

func newHistory() *history {
	return &history{digests: map[uint32]bpf.Digest{}, gone: map[uint32]bool{}}
}

// check looks at the outputs after one transaction, whose snapshot had the inputs as they
// still are.
func (h *history) check(w *world) {
	txn := w.db.ReadTxn()
	entries, wanted := w.entries(), w.wanted()

	// What is there is right. What is compiled has all entries with what else is.
	compiled := map[tables.Compiled]bool{}
	for c := range w.rule.Compiled.All(txn) {
		compiled[*c] = true
	}
	for k, says := range wanted {
		got, found := entries[k]
		both := compiled[tables.Compiled{Role: tables.CompiledRuleset, Number: k.Ruleset}] &&
			(k.Class == bpf.AnyClass ||
				compiled[tables.Compiled{Role: tables.CompiledClass, Number: k.Class}])
		if found || both {
			require.Equal(w, says, got, "%s", k)
		}
	}

	// Sets never change, and no number is used again.
	sets := map[uint32]bool{}
	for s := range w.rule.Sets.All(txn) {
		sets[s.Number] = true
		require.NotZero(w, s.Number)
		require.False(w, h.gone[s.Number], "set %d comes again", s.Number)
		if was, known := h.digests[s.Number]; known {
			require.Equal(w, was, s.Digest)
		}
		h.digests[s.Number] = s.Digest
	}
	for number := range h.digests {
		h.gone[number] = !sets[number]
	}

	// Rows stay, with their status, as long as both objects do.
	rows := map[bpf.PolicyKey]*tables.PolicyEntry{}
	for e := range w.rule.Entries.All(txn) {
		rows[e.MapKey()] = e
	}
	for k, row := range h.rows {
		if _, lives := wanted[k]; lives {
			require.Same(w, row, rows[k])
		}
	}
	h.rows = rows
}

// checkRest looks at the outputs when there is nothing left to compute.
func checkRest(w *world) {
	txn := w.db.ReadTxn()
	require.Equal(w, w.wanted(), w.entries())
	objects := w.rulesets.NumObjects(txn) + w.classes.NumObjects(txn)
	require.Equal(w, objects, w.rule.Compiled.NumObjects(txn))
	maps := w.desired()
	classes := append(statedb.Collect(w.classes.All(txn)), &tables.Class{})
	for r := range w.rulesets.All(txn) {
		for _, c := range classes {
			for _, d := range directions {
				for _, protocol := range protocols {
					for port := range uint16(ports + 1) {
						q := Question{r.Number, c.Number, d, protocol, port}
						deny, isDefault, by := judge(r, c, q)
						a, found := maps.Lookup(q)
						if !found {
							w.Fatalf("nothing found for %v", q)
						}
						v, _, _ := w.rule.Verdicts.Get(txn, tables.VerdictByKey(a.Key))
						want := valueOf(deny, isDefault, by)
						if a.Verdict != want || !slices.Equal(by, v.Rules) {
							w.Fatalf("%v: want %s by %v: %s by %v", q, want, by, a.Verdict, v.Rules)
						}
					}
				}
			}
		}
	}
	for _, says := range w.contents() {
		checkMinimal(w, says)
	}
}

func valueOf(deny, isDefault bool, by []tables.RuleID) bpf.VerdictValue {
	return bpf.VerdictValue{
		Cookie: tables.CookieOf(by), Deny: asByte(deny), Default: asByte(isDefault),
	}
}

// checkMinimal checks that no verdict says what a shorter one of its set does.
func checkMinimal(t testing.TB, says *content) {
	byKey := map[bpf.VerdictKey]tables.Verdict{}
	for _, v := range says.verdicts {
		byKey[v.Key] = v
	}
	for key, v := range byKey {
		for around := range Around(key) {
			shorter, found := byKey[around]
			if around == key || !found {
				continue
			}
			same := shorter.Value == v.Value && slices.Equal(shorter.Rules, v.Rules)
			require.False(t, same, "%s and %s", key, around)
			break
		}
	}
}

// Rulesets and classes come and go in any order, and transactions have pieces of any size.
// No mark is early, nothing that is there is wrong, and at rest the tables are those of a
// computation from scratch, and say what the rules say.
func TestRandom(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			w, h := newWorld(t), newHistory()
			w.rule.maxWork = []work{1, 5, 30, maxWork}[random.IntN(4)]
			var live []any
			number := uint32(0)
			for range 12 {
				var come, leave []any
				for range 1 + random.IntN(4) {
					number++
					switch what := random.IntN(3); {
					case what == 0 && len(live) > 4:
						at := random.IntN(len(live))
						leave = append(leave, live[at])
						live = slices.Delete(live, at, at+1)
					case what == 1:
						come = append(come, randomRuleset(random, number))
					default:
						come = append(come, randomClass(random, number))
					}
				}
				live = append(live, come...)
				w.put(come...)
				w.remove(leave...)
				for more := true; more && random.IntN(6) > 0; {
					more = w.stepper.Step()
					h.check(w)
				}
				if random.IntN(3) == 0 {
					w.work()
					h.check(w)
					checkRest(w)
				}
				if random.IntN(3) == 0 {
					w.program()
					h.rows = nil
				}
			}
			w.work()
			h.check(w)
			checkRest(w)
			w.remove(live...)
			w.work()
			require.Empty(t, w.entries())
			require.Zero(t, w.rule.Compiled.NumObjects(w.db.ReadTxn()))
		})
	}
}

// program gives all rows the status of what the kernel has.
func (w *world) program() {
	wtxn := w.db.WriteTxn(w.rule.Entries, w.rule.Verdicts)
	defer wtxn.Commit()
	for _, e := range statedb.Collect(w.rule.Entries.All(wtxn)) {
		row := *e
		row.Status = reconciler.StatusDone()
		require.NoError(w, derive.Insert(wtxn, w.rule.Entries, &row))
	}
	for _, v := range statedb.Collect(w.rule.Verdicts.All(wtxn)) {
		row := *v
		row.Status = reconciler.StatusDone()
		require.NoError(w, derive.Insert(wtxn, w.rule.Verdicts, &row))
	}
}
