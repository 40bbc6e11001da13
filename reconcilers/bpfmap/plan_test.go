// SPDX-License-Identifier: Apache-2.0

package bpfmap

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// prefixKey is the key of a small prefix map.
type prefixKey struct {
	PrefixLen uint32
	Addr      [4]byte
}

func (k prefixKey) String() string {
	return fmt.Sprintf("%d.%d.%d.%d/%d", k.Addr[0], k.Addr[1], k.Addr[2], k.Addr[3], k.PrefixLen)
}

type number uint32

func (n number) String() string { return fmt.Sprint(uint32(n)) }

// diff returns the changes between two states, in random order.
func diff[K, V comparable](rnd *rand.Rand, before, after map[K]V) []Change[K, V] {
	var changes []Change[K, V]
	for key, old := range before {
		if value, ok := after[key]; !ok {
			changes = append(changes, Change[K, V]{Key: key, Old: &old})
		} else if value != old {
			changes = append(changes, Change[K, V]{Key: key, Old: &old, New: &value})
		}
	}
	for key, value := range after {
		if _, ok := before[key]; !ok {
			changes = append(changes, Change[K, V]{Key: key, New: &value})
		}
	}
	rnd.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	for i := range changes {
		changes[i].index = i
	}
	return changes
}

// runPlan executes a plan against a map in memory that has a state, and calls
// check after every write. The outcomes are those of the changes.
func runPlan[K, V interface {
	comparable
	fmt.Stringer
}](t *testing.T, plan Plan[K, V], spec bpf.Spec, before map[K]V, changes []Change[K, V],
	fail func() error, check func(get func(K) (V, bool), w bpf.Write)) *execution[K, V] {
	memory := bpf.NewMemory()
	m, err := bpf.Open[K, V](memory, spec)
	require.NoError(t, err)
	for key, value := range before {
		_, err := m.Update([]K{key}, []V{value})
		require.NoError(t, err)
	}
	memory.OnWrite(func(w bpf.Write, r bpf.Reader) {
		check(func(key K) (V, bool) { return bpf.Get[K, V](r, spec.Name, key) }, w)
	})
	memory.Inject(func(string, bpf.Op) error { return fail() })
	x := &execution[K, V]{
		target: m, plan: plan, changes: changes, outcomes: make([]outcome[V], len(changes)),
		count:  func(bpf.Op, int, error) {},
		before: func(key K) (V, bool) { v, ok := before[key]; return v, ok },
		all:    maps.All(before),
	}
	for i := range changes {
		x.outcomes[i].kernel = changes[i].Old
	}
	x.run(plan.Order(changes, x.before))
	return x
}

func noFaults() error { return nil }

// someFaults fails every tenth time.
func someFaults(rnd *rand.Rand) func() error {
	return func() error {
		if rnd.IntN(10) == 0 {
			return unix.EPERM
		}
		return nil
	}
}

// A packet to any address finds its old or its new decision after every write,
// also when some fail, and the new one in the end.
func TestPlanPrefixRandom(t *testing.T) {
	spec := bpf.Spec{Name: "prefixes", Type: bpf.TypeLPM, MaxEntries: 1000}
	state := func(rnd *rand.Rand) map[prefixKey]number {
		s := map[prefixKey]number{}
		for range rnd.IntN(8) {
			key := prefixKey{PrefixLen: uint32(rnd.IntN(5)), Addr: [4]byte{byte(rnd.IntN(16)) << 4}}
			s[bpf.Masked(key)] = number(rnd.IntN(100))
		}
		return s
	}
	decide := func(get func(prefixKey) (number, bool), addr byte) number {
		for length := 4; length >= 0; length-- {
			key := bpf.Masked(prefixKey{PrefixLen: uint32(length), Addr: [4]byte{addr << 4}})
			if v, ok := get(key); ok {
				return v
			}
		}
		return 1000 // none
	}
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		before, after := state(rnd), state(rnd)
		lookup := func(s map[prefixKey]number) func(prefixKey) (number, bool) {
			return func(k prefixKey) (number, bool) { v, ok := s[k]; return v, ok }
		}
		faults := noFaults
		if seed%2 == 1 {
			faults = someFaults(rnd)
		}
		x := runPlan(t, PlanPrefix[prefixKey, number](), spec, before, diff(rnd, before, after), faults,
			func(get func(prefixKey) (number, bool), w bpf.Write) {
				for addr := range byte(16) {
					got := decide(get, addr)
					if got != decide(lookup(before), addr) && got != decide(lookup(after), addr) {
						t.Fatalf("seed %d: after %v, address %d finds %v\nbefore %v\nafter %v", seed, w, addr, got, before, after)
					}
				}
			})
		for i, out := range x.outcomes {
			if seed%2 == 0 {
				require.True(t, equal(out.kernel, x.changes[i].New), "seed %d", seed)
			}
		}
	}
}

func TestPlanAny(t *testing.T) {
	one, two := number(1), number(2)
	key := func(n uint32) prefixKey { return prefixKey{PrefixLen: n} }
	ops := PlanAny[prefixKey, number]().Order([]Change[prefixKey, number]{
		{Key: key(1), Old: &one},
		{Key: key(2), Old: &one, New: &two},
		{Key: key(3), New: &one},
	}, nil)
	require.Equal(t, []Op[prefixKey, number]{
		{Key: key(2), Value: &two, Old: &one},
		{Key: key(3), Value: &one},
		{Key: key(1), Old: &one},
	}, ops)
}

func TestPrefixGroup(t *testing.T) {
	key := func(length uint32, a, b byte) prefixKey { return prefixKey{length, [4]byte{a, b}} }
	keys := []prefixKey{key(8, 10, 0), key(16, 10, 1), key(32, 10, 1), key(16, 11, 0), key(0, 0, 0)}
	for _, added := range keys {
		g := newPrefixGroup(keys)
		g.Add(added)
		for _, asked := range keys {
			short := min(added.PrefixLen, asked.PrefixLen)
			overlap := bpf.Truncated(added, int(short)) == bpf.Truncated(asked, int(short))
			require.Equal(t, overlap, g.Ties(asked), "%v and %v", added, asked)
		}
	}
}

// verdictKey is the key of a small map of verdicts: a peer, 0 being any, and a
// prefix of a port of two bits.
type verdictKey struct {
	Peer   uint32
	Length uint32
	Port   uint32
}

func (k verdictKey) String() string {
	return fmt.Sprintf("peer=%d port=%d/%d", k.Peer, k.Port, k.Length)
}

type verdictValue struct {
	Precedence uint32
	Deny       uint32
}

func (v verdictValue) String() string {
	return fmt.Sprintf("precedence=%d deny=%d", v.Precedence, v.Deny)
}

const portBits = 2

func verdictCovers(k verdictKey) iter.Seq[verdictKey] {
	return func(yield func(verdictKey) bool) {
		for length := int(k.Length); length >= 0; length-- {
			shift := portBits - length
			if !yield(verdictKey{k.Peer, uint32(length), k.Port >> shift << shift}) {
				return
			}
		}
	}
}

func testPrecedence() Precedence[verdictKey, verdictValue] {
	return Precedence[verdictKey, verdictValue]{
		Of:     func(v verdictValue) int { return int(v.Precedence) },
		Denies: func(v verdictValue) bool { return v.Deny != 0 },
		Length: func(k verdictKey) int { return int(k.Length) },
		Covers: verdictCovers,
		Overlaps: func(a, b verdictKey) bool {
			shift := portBits - min(a.Length, b.Length)
			return (a.Peer == b.Peer || a.Peer == 0 || b.Peer == 0) && a.Port>>shift == b.Port>>shift
		},
		Forbid: func(entry, _ verdictValue) verdictValue { return verdictValue{entry.Precedence, 1} },
		Unit:   func(verdictKey) any { return 0 },
	}
}

// verdict is what a packet of a peer to a port meets.
func verdict4(get func(verdictKey) (verdictValue, bool), peer, port uint32) (deny bool, by verdictValue) {
	best := -1
	for _, p := range []uint32{peer, 0} {
		for cover := range verdictCovers(verdictKey{p, portBits, port}) {
			if v, ok := get(cover); ok {
				if int(v.Precedence) > best {
					best, by = int(v.Precedence), v
				}
				break
			}
		}
	}
	return best < 0 || by.Deny != 0, by
}

// verdictState returns a state as policies give it: at each contributed key the
// contribution of the highest precedence that covers it, and a default.
func verdictState(rnd *rand.Rand) map[verdictKey]verdictValue {
	contributions := map[verdictKey]verdictValue{}
	add := func(k verdictKey, tier, deny uint32) {
		v := verdictValue{2*tier + deny, deny}
		if old, ok := contributions[k]; !ok || old.Precedence < v.Precedence {
			contributions[k] = v
		}
	}
	add(verdictKey{}, 0, rnd.Uint32N(2))
	for range rnd.IntN(6) {
		length := rnd.Uint32N(portBits + 1)
		shift := portBits - length
		add(verdictKey{rnd.Uint32N(3), length, rnd.Uint32N(1<<portBits) >> shift << shift}, 1+rnd.Uint32N(3), rnd.Uint32N(2))
	}
	state := map[verdictKey]verdictValue{}
	for k := range contributions {
		var best verdictValue
		for cover := range verdictCovers(k) {
			if v, ok := contributions[cover]; ok && v.Precedence >= best.Precedence {
				best = v
			}
		}
		state[k] = best
	}
	return state
}

var verdictSpec = bpf.Spec{Name: "verdicts", Type: bpf.TypeHash, MaxEntries: 1000}

// violations counts, over random changes, those in which some packet meets a
// verdict after some write that is neither its old nor its new one.
func violations(t *testing.T, plan Plan[verdictKey, verdictValue], runs int, faulty bool) (bad int, example string) {
	for seed := range uint64(runs) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		before, after := verdictState(rnd), verdictState(rnd)
		faults := noFaults
		if faulty {
			faults = someFaults(rnd)
		}
		violated := false
		x := runPlan(t, plan, verdictSpec, before, diff(rnd, before, after), faults,
			func(get func(verdictKey) (verdictValue, bool), w bpf.Write) {
				for peer := range uint32(4) {
					for port := range uint32(1 << portBits) {
						got, _ := verdict4(get, peer, port)
						old, _ := verdict4(lookupIn(before), peer, port)
						new, _ := verdict4(lookupIn(after), peer, port)
						if got != old && got != new && !violated {
							violated = true
							example = fmt.Sprintf("seed %d: after %v, peer %d port %d\nbefore %v\nafter %v", seed, w, peer, port, before, after)
						}
					}
				}
			})
		if violated {
			bad++
		}
		for i, out := range x.outcomes {
			if !faulty {
				require.True(t, equal(out.kernel, x.changes[i].New), "seed %d", seed)
			}
		}
	}
	return bad, example
}

func lookupIn(state map[verdictKey]verdictValue) func(verdictKey) (verdictValue, bool) {
	return func(k verdictKey) (verdictValue, bool) { v, ok := state[k]; return v, ok }
}

func TestPlanPrecedenceRandom(t *testing.T) {
	bad, example := violations(t, PlanPrecedence(testPrecedence()), 6000, false)
	require.Zero(t, bad, example)
	bad, example = violations(t, PlanPrecedence(testPrecedence()), 6000, true)
	require.Zero(t, bad, example)
}

// The check above sees a wrong order.
func TestPlanDeniesFirstViolates(t *testing.T) {
	plan := PlanPrecedence(testPrecedence())
	plan.Order = func(changes []Change[verdictKey, verdictValue], _ func(verdictKey) (verdictValue, bool)) []Op[verdictKey, verdictValue] {
		writes, deletes := split(changes)
		slices.SortStableFunc(writes, func(a, b Op[verdictKey, verdictValue]) int {
			return cmp.Or(cmp.Compare(b.Value.Deny, a.Value.Deny), cmp.Compare(b.Key.Length, a.Key.Length))
		})
		return append(writes, deletes...)
	}
	bad, _ := violations(t, plan, 2000, false)
	require.Greater(t, bad, 20)
}

// When a denial does not fit, its packets are denied all the same.
func TestPlanPrecedenceFull(t *testing.T) {
	refusals, checked := 0, 0
	for seed := range uint64(6000) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		before, after := verdictState(rnd), verdictState(rnd)
		changes := diff(rnd, before, after)
		spec := verdictSpec
		spec.MaxEntries = uint32(len(before) + rnd.IntN(2))
		var state func(verdictKey) (verdictValue, bool)
		x := runPlan(t, PlanPrecedence(testPrecedence()), spec, before, changes, noFaults,
			func(get func(verdictKey) (verdictValue, bool), _ bpf.Write) { state = get })
		for _, op := range x.refused {
			denial := x.changes[op.change].New
			if denial.Deny == 0 {
				continue
			}
			refusals++
			for peer := range uint32(4) {
				for port := range uint32(1 << portBits) {
					if _, by := verdict4(lookupIn(after), peer, port); by != *denial || !decidedBy(after, op.Key, peer, port) {
						continue
					}
					deny, _ := verdict4(state, peer, port)
					require.True(t, deny, "seed %d: %v did not fit; peer %d port %d\nbefore %v\nafter %v", seed, op.Key, peer, port, before, after)
					checked++
				}
			}
		}
	}
	require.Greater(t, refusals, 100)
	require.Greater(t, checked, 100)
}

// decidedBy reports whether a look-up of a packet in a state finds a key.
func decidedBy(state map[verdictKey]verdictValue, key verdictKey, peer, port uint32) bool {
	if key.Peer != peer && key.Peer != 0 {
		return false
	}
	for cover := range verdictCovers(verdictKey{key.Peer, portBits, port}) {
		if _, ok := state[cover]; ok {
			return cover == key
		}
	}
	return false
}
