// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// world has the tables that verdicts are computed from.
type world struct {
	t       testing.TB
	db      *statedb.DB
	members statedb.RWTable[*tables.ClassMember]
	rules   statedb.RWTable[*tables.EnforcedPolicy]
	kernel  statedb.RWTable[*tables.PolicyMapEntry]
	mode    tables.Enforcement
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, db: statedb.New(), mode: tables.EnforcementDefault}
	var err error
	w.members, err = tables.NewClassMemberTable(w.db)
	require.NoError(t, err)
	w.rules, err = tables.NewEnforcedPolicyTable(w.db)
	require.NoError(t, err)
	w.kernel, err = tables.NewPolicyMapEntryTable(w.db)
	require.NoError(t, err)
	return w
}

func (w *world) tables() Tables {
	return Tables{Members: w.members, Rules: w.rules, Kernel: w.kernel, Enforcement: w.mode}
}

func insert[Row any](w *world, table statedb.RWTable[Row], rows ...Row) {
	wtxn := w.db.WriteTxn(table)
	defer wtxn.Commit()
	for _, row := range rows {
		_, _, err := table.Insert(wtxn, row)
		require.NoError(w.t, err)
	}
}

// state returns the entries of a subject with some peers, as the map has them.
func (w *world) state(subject uint32, peers ...uint32) map[bpf.PolicyKey]*tables.PolicyEntry {
	state := map[bpf.PolicyKey]*tables.PolicyEntry{}
	c := NewComputer(w.tables())
	for _, d := range directions {
		for _, peer := range append(peers, bpf.AnyPeerClass) {
			pair := tables.PolicyPair{Subject: subject, Direction: d, Peer: peer}
			entries := c.Entries(w.db.ReadTxn(), pair)
			require.True(w.t, slices.EqualFunc(entries, NewComputer(w.tables()).Entries(w.db.ReadTxn(), pair), (*tables.PolicyEntry).Equal))
			for _, e := range entries {
				require.Equal(w.t, pair, e.Pair())
				require.NotContains(w.t, state, e.Key)
				state[e.Key] = e
			}
		}
	}
	return state
}

func values(state map[bpf.PolicyKey]*tables.PolicyEntry) func(bpf.PolicyKey) (bpf.PolicyValue, bool) {
	return func(k bpf.PolicyKey) (bpf.PolicyValue, bool) {
		if e := state[k]; e != nil {
			return e.Value, true
		}
		return bpf.PolicyValue{}, false
	}
}

func classRow(role bpf.Role, number uint32, ids []tables.SelectorID, ports ...tables.NamedPort) *tables.ClassMember {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return &tables.ClassMember{Role: role, OfClass: true, Class: number, Selectors: ids, Ports: ports, Digest: tables.SignatureDigest(ids, ports)}
}

func ruleID(name string, d bpf.Direction, item int) tables.RuleID {
	return tables.RuleID{Policy: tables.PolicyID{Kind: tables.PolicyCilium, Name: tables.Name{Namespace: "default", Name: name}}, Direction: d, Item: int32(item)}
}

// enforced returns the rows that have some rules, those with a version as retired.
func enforced(rules []*tables.EnforcedRule) (rows []*tables.EnforcedPolicy) {
	slices.SortFunc(rules, compareRules)
	for _, r := range rules {
		if len(rows) == 0 || rows[len(rows)-1].Policy != r.Policy {
			rows = append(rows, &tables.EnforcedPolicy{Policy: r.Policy})
		}
		row := rows[len(rows)-1]
		if r.Version != 0 {
			row.Retired = append(row.Retired, r)
		} else {
			row.Rules = append(row.Rules, r)
		}
	}
	return rows
}

// packet is traffic of a pod of a subject class with a peer of a class.
type packet struct {
	direction bpf.Direction
	protocol  uint8
	port      uint16
}

// judge is the verdict from first principles: what the rules say of one packet.
// by are the rules that decide, of any peer and of this one.
func judge(rules []*tables.EnforcedRule, subject, peer *tables.ClassMember, always bool, p packet) (precedence uint32, deny bool, by []tables.RuleID) {
	deny = always
	for _, r := range rules {
		if r.Version != 0 || r.Direction != p.direction || !slices.Contains(subject.Selectors, r.Subject) {
			continue
		}
		if r.DefaultDeny {
			if precedence == bpf.PrecedenceDefault {
				deny, by = true, append(by, r.RuleID)
			}
			continue
		}
		if !r.AnyPeer && !slices.ContainsFunc(r.Peers, func(id tables.SelectorID) bool { return slices.Contains(peer.Selectors, id) }) {
			continue
		}
		at := len(r.Ports) == 0
		for _, port := range r.Ports {
			side := subject
			if r.Direction == bpf.DirectionEgress {
				side = peer
			}
			switch {
			case port.Protocol != p.protocol:
			case port.Name == "":
				at = at || port.First <= p.port && p.port <= port.Last
			default:
				at = at || slices.Contains(side.Ports, tables.NamedPort{Name: port.Name, Protocol: port.Protocol, Port: p.port})
			}
		}
		if !at {
			continue
		}
		of := bpf.PrecedenceAllow
		if r.Deny {
			of = bpf.PrecedenceDeny
		}
		if of > precedence {
			precedence, deny, by = of, r.Deny, nil
		}
		if of == precedence {
			by = append(by, r.RuleID)
		}
	}
	return precedence, deny, by
}

func TestEntriesAgainstFirstPrinciples(t *testing.T) {
	const ports = 8
	for seed := range uint64(600) {
		random := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t)
		if random.IntN(4) == 0 {
			w.mode = tables.EnforcementAlways
		}
		ids := func(among ...tables.SelectorID) (some []tables.SelectorID) {
			for _, id := range among {
				if random.IntN(2) == 0 {
					some = append(some, id)
				}
			}
			return some
		}
		named := func() (some []tables.NamedPort) {
			for _, n := range []string{"dns", "web"} {
				for _, protocol := range []uint8{6, 17} {
					if random.IntN(2) == 0 {
						some = append(some, tables.NamedPort{Name: n, Protocol: protocol, Port: uint16(random.IntN(ports))})
					}
				}
			}
			return some
		}
		subject := classRow(bpf.RoleSubject, 1, append(ids(11, 12), 10), named()...)
		peers := []*tables.ClassMember{
			{}, // of no class
			classRow(bpf.RolePeer, 1, append(ids(21, 22, 23), 20), named()...),
			classRow(bpf.RolePeer, 2, append(ids(21, 22, 23), 20), named()...),
		}
		insert(w, w.members, subject, peers[1], peers[2])

		var rules []*tables.EnforcedRule
		for i := range random.IntN(10) {
			r := &tables.EnforcedRule{
				RuleID:  ruleID(fmt.Sprint("p", i%3), bpf.Direction(random.IntN(2)), i),
				Subject: tables.SelectorID(10 + random.IntN(3)),
				Deny:    random.IntN(3) == 0,
			}
			if random.IntN(8) == 0 {
				r.Version = 1 + uint64(i)
			}
			switch random.IntN(5) {
			case 0:
				r.DefaultDeny, r.Deny, r.Item = true, false, int32(-1-i)
			case 1:
				r.AnyPeer = true
			default:
				r.Peers = ids(21, 22, 23) // perhaps nobody
			}
			for range random.IntN(3) {
				port := tables.PolicyPort{Protocol: []uint8{1, 6, 17}[random.IntN(3)]}
				switch random.IntN(4) {
				case 0:
					port.Name = []string{"dns", "web"}[random.IntN(2)]
				case 1:
					port.Last = 65535
				default:
					port.First = uint16(random.IntN(ports))
					port.Last = port.First + uint16(random.IntN(ports-int(port.First)))
				}
				if !r.DefaultDeny {
					r.Ports = append(r.Ports, port)
				}
			}
			rules = append(rules, r)
		}
		insert(w, w.rules, enforced(rules)...)

		state := w.state(1, 1, 2)
		checkMinimal(t, state)
		for _, peer := range peers {
			for _, d := range directions {
				for _, protocol := range []uint8{1, 6, 17, 132} {
					for port := range uint16(ports + 1) {
						p := packet{d, protocol, port}
						precedence, deny, by := judge(rules, subject, peer, w.mode == tables.EnforcementAlways, p)
						value, key, found := Lookup(values(state), 1, peer.Class, d, protocol, port)
						about := fmt.Sprintf("seed %d: %v peer %d: %s", seed, p, peer.Class, key)
						require.True(t, found, about)
						require.Equal(t, deny, value.Deny != 0, about)
						require.Equal(t, precedence, value.Precedence, about)
						require.Equal(t, len(by) > 0, len(state[key].Rules) > 0, about)
						require.Subset(t, by, state[key].Rules, about)
						require.Equal(t, tables.CookieOf(state[key].Rules), value.Cookie)
					}
				}
			}
		}
	}
}

// checkMinimal checks that no entry says what a shorter one of its pair does, and
// that each names its rules in order.
func checkMinimal(t *testing.T, state map[bpf.PolicyKey]*tables.PolicyEntry) {
	for key, e := range state {
		require.True(t, slices.IsSortedFunc(e.Rules, tables.RuleID.Compare))
		for cover := range Covering(key) {
			shorter := state[cover]
			if cover == key || shorter == nil {
				continue
			}
			require.False(t, shorter.Value == e.Value && slices.Equal(shorter.Rules, e.Rules), "%s and %s", key, cover)
			break
		}
	}
}

// TestEntries shows the entries of single policies.
func TestEntries(t *testing.T) {
	const subject, peer, other = 10, 20, 21
	in, out := bpf.DirectionIngress, bpf.DirectionEgress
	item := func(d bpf.Direction, i int, change func(*tables.EnforcedRule)) *tables.EnforcedRule {
		r := &tables.EnforcedRule{RuleID: ruleID("p", d, i), Subject: subject}
		change(r)
		return r
	}
	tcp := func(first, last uint16) []tables.PolicyPort {
		return []tables.PolicyPort{{Protocol: 6, First: first, Last: last}}
	}
	web := []tables.PolicyPort{{Protocol: 6, Name: "web"}}
	defaultDeny := func(r *tables.EnforcedRule) { r.DefaultDeny, r.Item = true, -1 }
	open := []string{"egress any any: allow 0", "ingress any any: allow 0"}
	for _, test := range []struct {
		name  string
		rules []*tables.EnforcedRule
		want  []string
	}{
		{name: "no rules", want: open},
		{
			name:  "default deny of a direction",
			rules: []*tables.EnforcedRule{item(in, 0, defaultDeny)},
			want:  []string{"egress any any: allow 0", "ingress any any: deny 0"},
		},
		{
			name: "an allow without default deny",
			rules: []*tables.EnforcedRule{item(in, 0, func(r *tables.EnforcedRule) {
				r.Peers, r.Ports = []tables.SelectorID{peer}, tcp(80, 80)
			})},
			want: append(slices.Clone(open), "ingress 1 80/tcp: allow 1"),
		},
		{
			name: "no peers are nobody",
			rules: []*tables.EnforcedRule{
				item(in, 0, defaultDeny),
				item(in, 1, func(r *tables.EnforcedRule) { r.Ports = tcp(80, 80) }),
			},
			want: []string{"egress any any: allow 0", "ingress any any: deny 0"},
		},
		{
			name:  "any peer at a range",
			rules: []*tables.EnforcedRule{item(out, 0, func(r *tables.EnforcedRule) { r.AnyPeer, r.Ports = true, tcp(80, 82) })},
			want:  append(slices.Clone(open), "egress any 80-81/tcp: allow 1", "egress any 82/tcp: allow 1"),
		},
		{
			name: "what a denial covers is not said again",
			rules: []*tables.EnforcedRule{
				item(in, 0, func(r *tables.EnforcedRule) { r.Peers, r.Ports = []tables.SelectorID{peer}, tcp(80, 80) }),
				item(in, 1, func(r *tables.EnforcedRule) { r.Peers, r.Deny = []tables.SelectorID{peer}, true }),
			},
			want: append(slices.Clone(open), "ingress 1 any: deny 2"),
		},
		{
			name: "a denial in an allow",
			rules: []*tables.EnforcedRule{
				item(in, 0, func(r *tables.EnforcedRule) { r.Peers = []tables.SelectorID{peer} }),
				item(in, 1, func(r *tables.EnforcedRule) { r.Peers, r.Deny, r.Ports = []tables.SelectorID{peer}, true, tcp(80, 80) }),
			},
			want: append(slices.Clone(open), "ingress 1 80/tcp: deny 2", "ingress 1 any: allow 1"),
		},
		{
			name: "another peer",
			rules: []*tables.EnforcedRule{
				item(in, 0, func(r *tables.EnforcedRule) { r.Peers = []tables.SelectorID{other} }),
			},
			want: open,
		},
		{
			name: "a named port of the subject",
			rules: []*tables.EnforcedRule{
				item(in, 0, func(r *tables.EnforcedRule) { r.AnyPeer, r.Ports = true, web }),
				item(in, 1, func(r *tables.EnforcedRule) { r.Peers, r.Ports = []tables.SelectorID{peer}, web }),
			},
			want: append(slices.Clone(open), "ingress 1 8080/tcp: allow 1", "ingress any 8080/tcp: allow 1"),
		},
		{
			name: "a named port of the peer",
			rules: []*tables.EnforcedRule{
				item(out, 0, func(r *tables.EnforcedRule) { r.AnyPeer, r.Ports = true, web }),
				item(out, 1, func(r *tables.EnforcedRule) { r.Peers, r.Ports = []tables.SelectorID{other}, web }),
			},
			want: append(slices.Clone(open), "egress 1 9090/tcp: allow 1"),
		},
		{
			name: "a type of ICMP",
			rules: []*tables.EnforcedRule{item(in, 0, func(r *tables.EnforcedRule) {
				r.Peers, r.Ports = []tables.SelectorID{peer}, []tables.PolicyPort{{Protocol: 1, First: 8, Last: 8}}
			})},
			want: append(slices.Clone(open), "ingress 1 type 8/icmp: allow 1"),
		},
		{
			name: "all ports of a protocol",
			rules: []*tables.EnforcedRule{item(in, 0, func(r *tables.EnforcedRule) {
				r.Peers, r.Ports = []tables.SelectorID{peer}, []tables.PolicyPort{{Protocol: 132, Last: 65535}}
			})},
			want: append(slices.Clone(open), "ingress 1 all/sctp: allow 1"),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			insert(w, w.members,
				classRow(bpf.RoleSubject, 1, []tables.SelectorID{subject}, tables.NamedPort{Name: "web", Protocol: 6, Port: 8080}),
				classRow(bpf.RolePeer, 1, []tables.SelectorID{peer}, tables.NamedPort{Name: "web", Protocol: 6, Port: 9090}))
			insert(w, w.rules, enforced(test.rules)...)
			slices.Sort(test.want)
			require.Equal(t, test.want, describe(w.state(1, 1)))
		})
	}
}

// describe returns entries as text, in order.
func describe(state map[bpf.PolicyKey]*tables.PolicyEntry) (lines []string) {
	for _, e := range state {
		row := e.TableRow()
		lines = append(lines, fmt.Sprintf("%s %s %s: %s %s", row[2], row[1], row[3], row[4], row[5]))
	}
	slices.Sort(lines)
	return lines
}
