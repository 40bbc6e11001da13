// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/bpfmap"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy"
)

type (
	change = bpfmap.Change[bpf.PolicyKey, bpf.PolicyValue]
	op     = bpfmap.Op[bpf.PolicyKey, bpf.PolicyValue]
	state  map[bpf.PolicyKey]bpf.PolicyValue
)

func (s state) get(k bpf.PolicyKey) (bpf.PolicyValue, bool) { v, found := s[k]; return v, found }

// states gives states of the map as policies do: those of one subject class, three
// peer classes and any peer, in both directions.
type states struct {
	db     *statedb.DB
	rules  statedb.RWTable[*tables.EnforcedPolicy]
	tables policy.Tables
}

const subject, peers = 1, 3

func newStates(t testing.TB) *states {
	s := &states{db: statedb.New()}
	members, err := tables.NewClassMemberTable(s.db)
	require.NoError(t, err)
	s.rules, err = tables.NewEnforcedPolicyTable(s.db)
	require.NoError(t, err)
	kernel, err := tables.NewPolicyMapEntryTable(s.db)
	require.NoError(t, err)
	s.tables = policy.Tables{Members: members, Rules: s.rules, Kernel: kernel, Enforcement: tables.EnforcementDefault}

	wtxn := s.db.WriteTxn(members)
	defer wtxn.Commit()
	row := func(role bpf.Role, class uint32, ids ...tables.SelectorID) {
		_, _, err := members.Insert(wtxn, &tables.ClassMember{Role: role, OfClass: true, Class: class, Selectors: ids})
		require.NoError(t, err)
	}
	row(bpf.RoleSubject, subject, 10)
	row(bpf.RolePeer, 1, 21)
	row(bpf.RolePeer, 2, 22)
	row(bpf.RolePeer, 3, 21, 22)
	return s
}

// next returns the state of random rules.
func (s *states) next(random *rand.Rand) state {
	wtxn := s.db.WriteTxn(s.rules)
	defer wtxn.Abort()
	row := &tables.EnforcedPolicy{}
	for item := range random.IntN(8) {
		r := &tables.EnforcedRule{
			RuleID:  tables.RuleID{Direction: bpf.Direction(random.IntN(4) / 3), Item: int32(item)},
			Subject: 10, Deny: random.IntN(2) == 0,
		}
		switch random.IntN(6) {
		case 0:
			r.DefaultDeny, r.Deny, r.Item = true, false, -1
		case 1, 2:
			r.AnyPeer = true
		default:
			r.Peers = []tables.SelectorID{tables.SelectorID(21 + random.IntN(2))}
		}
		if random.IntN(3) > 0 && !r.DefaultDeny {
			port := tables.PolicyPort{Protocol: []uint8{6, 17}[random.IntN(2)], Last: 65535}
			if random.IntN(4) > 0 {
				port.First = uint16(random.IntN(4))
				port.Last = port.First + uint16(random.IntN(4-int(port.First)))
			}
			r.Ports = []tables.PolicyPort{port}
		}
		row.Rules = append(row.Rules, r)
	}
	s.rules.Insert(wtxn, row)
	computer, got := policy.NewComputer(s.tables), state{}
	for _, d := range []bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress} {
		for peer := range uint32(peers + 1) {
			for _, e := range computer.Entries(wtxn, tables.PolicyPair{Subject: subject, Direction: d, Peer: peer}) {
				got[e.Key] = e.Value
			}
		}
	}
	return got
}

// changes returns what leads from one state to another, in any order.
func changes(random *rand.Rand, before, after state) []change {
	var list []change
	for key, value := range before {
		if to, stays := after[key]; !stays {
			list = append(list, change{Key: key, Old: &value})
		} else if to != value {
			list = append(list, change{Key: key, Old: &value, New: &to})
		}
	}
	for key, value := range after {
		if _, was := before[key]; !was {
			list = append(list, change{Key: key, New: &value})
		}
	}
	slices.SortFunc(list, func(a, b change) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// packets calls f for packets of all kinds that the states tell apart.
func packets(f func(peer uint32, d bpf.Direction, protocol uint8, port uint16)) {
	for peer := range uint32(peers + 2) {
		for _, d := range []bpf.Direction{bpf.DirectionEgress, bpf.DirectionIngress} {
			for _, protocol := range []uint8{1, 6, 17} {
				for port := range uint16(5) {
					f(peer, d, protocol, port)
				}
			}
		}
	}
}

func denies(s state, peer uint32, d bpf.Direction, protocol uint8, port uint16) bool {
	v, _, found := policy.Lookup(s.get, subject, peer, d, protocol, port)
	return !found || v.Deny != 0
}

// verdicts returns which packets are denied, in order.
func verdicts(s state) (denied []bool) {
	packets(func(peer uint32, d bpf.Direction, protocol uint8, port uint16) {
		denied = append(denied, denies(s, peer, d, protocol, port))
	})
	return denied
}

// violations counts the changes in which some packet meets a verdict after some
// write that is neither its old nor its new one.
func violations(t *testing.T, runs int, order func([]change, func(bpf.PolicyKey) (bpf.PolicyValue, bool)) []op) (bad int, example string) {
	s := newStates(t)
	for seed := range uint64(runs) {
		random := rand.New(rand.NewPCG(seed, 5))
		before, after := s.next(random), s.next(random)
		now, violated := maps.Clone(before), false
		was, will := verdicts(before), verdicts(after)
		for _, op := range order(changes(random, before, after), before.get) {
			if op.Delete() {
				delete(now, op.Key)
			} else {
				now[op.Key] = *op.Value
			}
			for i, got := range verdicts(now) {
				if got != was[i] && got != will[i] && !violated {
					violated = true
					example = fmt.Sprintf("seed %d: after %v: packet %d\nbefore %v\nafter %v", seed, op.Key, i, before, after)
				}
			}
		}
		require.Equal(t, after, now, "seed %d", seed)
		if violated {
			bad++
		}
	}
	return bad, example
}

func TestOrderOfWrites(t *testing.T) {
	bad, example := violations(t, 2000, bpfmap.PlanPrecedence(Precedence).Order)
	require.Zero(t, bad, example)
}

// The check above sees a wrong order.
func TestOrderOfWritesMatters(t *testing.T) {
	for name, order := range map[string]func([]change, func(bpf.PolicyKey) (bpf.PolicyValue, bool)) []op{
		"any": bpfmap.PlanAny[bpf.PolicyKey, bpf.PolicyValue]().Order,
		"the longest first": func(changes []change, _ func(bpf.PolicyKey) (bpf.PolicyValue, bool)) (ops []op) {
			slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(b.Key.PrefixLen, a.Key.PrefixLen) })
			for _, c := range changes {
				ops = append(ops, c.Apply())
			}
			return ops
		},
	} {
		bad, _ := violations(t, 400, order)
		require.Greater(t, bad, 10, name)
	}
}

// What would allow packets of a denial that did not fit denies them meanwhile.
func TestNoRoomForDenials(t *testing.T) {
	s, closed := newStates(t), 0
	for seed := range uint64(600) {
		random := rand.New(rand.NewPCG(seed, 6))
		before, after := s.next(random), s.next(random)
		var refused []change
		now := maps.Clone(before)
		for _, c := range changes(random, before, after) {
			if c.Old == nil && c.New.Deny != 0 {
				refused = append(refused, c)
			}
		}
		entries := func(yield func(change) bool) {
			for key, value := range now {
				e := change{Key: key, Old: &value}
				if to, wanted := after[key]; wanted {
					e.New = &to
				}
				if !yield(e) {
					return
				}
			}
		}
		for _, op := range bpfmap.PlanPrecedence(Precedence).Close(refused, entries) {
			require.False(t, op.Delete())
			now[op.Key] = *op.Value
			closed++
		}
		packets(func(peer uint32, d bpf.Direction, protocol uint8, port uint16) {
			_, by, _ := policy.Lookup(after.get, subject, peer, d, protocol, port)
			if slices.ContainsFunc(refused, func(c change) bool { return c.Key == by }) {
				require.True(t, denies(now, peer, d, protocol, port), "seed %d: %v did not fit\nbefore %v\nafter %v", seed, by, before, after)
			}
		})
	}
	require.Greater(t, closed, 100)
}
