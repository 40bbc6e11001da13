// SPDX-License-Identifier: Apache-2.0

package verdicts

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// TestCases shows what is said of a class by single policies.
func TestCases(t *testing.T) {
	const peer, other = 20, 21
	in, out := bpf.DirectionIngress, bpf.DirectionEgress
	item := func(d bpf.Direction, i int, change func(*tables.Rule)) *tables.Rule {
		r := ruleAt("p", d, i)
		change(r)
		return r
	}
	defaultDeny := func(r *tables.Rule) { r.DefaultDeny, r.Item = true, -1 }
	at80 := []tables.PolicyPort{tcp(80, 80)}
	web, dns := []tables.PolicyPort{namedTCP("web")}, []tables.PolicyPort{namedTCP("dns")}
	open := []string{"egress any any: default allow", "ingress any any: default allow"}
	for _, test := range []struct {
		name    string
		rules   []*tables.Rule
		always  bool
		refused bool
		want    []string
	}{
		{name: "no rules", want: open},
		{
			name: "no rules, and enforcement of all pods", always: true,
			want: []string{"egress any any: default deny", "ingress any any: default deny"},
		},
		{
			name:  "default deny of a direction",
			rules: []*tables.Rule{item(in, 0, defaultDeny)},
			want:  []string{"egress any any: default allow", "ingress any any: default deny [-1]"},
		},
		{
			name:  "default deny of a direction, and enforcement of all pods",
			rules: []*tables.Rule{item(in, 0, defaultDeny)}, always: true,
			want: []string{"egress any any: default deny", "ingress any any: default deny [-1]"},
		},
		{
			name: "an allow without default deny",
			rules: []*tables.Rule{item(in, 0, func(r *tables.Rule) {
				r.Peers, r.Ports = []uint32{peer}, at80
			})},
			want: append(slices.Clone(open),
				"ingress 1 80/tcp: allow [0]", "ingress 1 any: default allow"),
		},
		{
			name: "no peers select nothing",
			rules: []*tables.Rule{
				item(in, 0, defaultDeny),
				item(in, 1, func(r *tables.Rule) { r.Ports = at80 }),
			},
			want: []string{"egress any any: default allow", "ingress any any: default deny [-1]"},
		},
		{
			name: "any peer at a range",
			rules: []*tables.Rule{item(out, 0, func(r *tables.Rule) {
				r.AnyPeer, r.Ports = true, []tables.PolicyPort{tcp(80, 82)}
			})},
			want: append(slices.Clone(open),
				"egress any 80-81/tcp: allow [0]", "egress any 82/tcp: allow [0]"),
		},
		{
			name: "a denial covers an allow",
			rules: []*tables.Rule{
				item(in, 0, func(r *tables.Rule) { r.Peers, r.Ports = []uint32{peer}, at80 }),
				item(in, 1, func(r *tables.Rule) { r.Peers, r.Deny = []uint32{peer}, true }),
			},
			want: append(slices.Clone(open), "ingress 1 any: deny [1]"),
		},
		{
			name: "a denial in an allow",
			rules: []*tables.Rule{
				item(in, 0, func(r *tables.Rule) { r.Peers = []uint32{peer} }),
				item(in, 1, func(r *tables.Rule) {
					r.Peers, r.Deny, r.Ports = []uint32{peer}, true, at80
				}),
			},
			want: append(slices.Clone(open),
				"ingress 1 80/tcp: deny [1]", "ingress 1 any: allow [0]"),
		},
		{
			name: "a denial of any peer is in the set of each",
			rules: []*tables.Rule{
				item(in, 0, func(r *tables.Rule) { r.Peers = []uint32{peer} }),
				item(in, 1, func(r *tables.Rule) {
					r.AnyPeer, r.Deny, r.Ports = true, true, at80
				}),
			},
			want: append(slices.Clone(open), "ingress any 80/tcp: deny [1]",
				"ingress 1 80/tcp: deny [1]", "ingress 1 any: allow [0]"),
		},
		{
			name: "rules that decide together",
			rules: []*tables.Rule{
				item(in, 0, func(r *tables.Rule) { r.AnyPeer, r.Ports = true, at80 }),
				item(in, 1, func(r *tables.Rule) { r.Peers = []uint32{peer} }),
			},
			want: append(slices.Clone(open), "ingress any 80/tcp: allow [0]",
				"ingress 1 80/tcp: allow [0 1]", "ingress 1 any: allow [1]"),
		},
		{
			name:  "another peer",
			rules: []*tables.Rule{item(in, 0, func(r *tables.Rule) { r.Peers = []uint32{other} })},
			want:  open,
		},
		{
			name: "a named port of the subject, which has none of the name",
			rules: []*tables.Rule{
				item(in, 0, func(r *tables.Rule) { r.AnyPeer, r.NoPorts = true, true }),
				item(in, 1, func(r *tables.Rule) {
					r.Peers, r.NoPorts, r.Deny = []uint32{peer}, true, true
				}),
			},
			want: open,
		},
		{
			name: "a named port of the peer",
			rules: []*tables.Rule{
				item(out, 0, func(r *tables.Rule) { r.AnyPeer, r.Ports = true, web }),
				item(out, 1, func(r *tables.Rule) { r.Peers, r.Ports = []uint32{other}, web }),
			},
			want: append(slices.Clone(open),
				"egress 1 9090/tcp: allow [0]", "egress 1 any: default allow"),
		},
		{
			name: "a name that the peer has no number for",
			rules: []*tables.Rule{
				item(out, 0, func(r *tables.Rule) { r.AnyPeer, r.Ports = true, dns }),
				item(out, 1, func(r *tables.Rule) { r.Peers, r.Ports = []uint32{peer}, dns }),
			},
			want: open,
		},
		{
			name: "a type of ICMP",
			rules: []*tables.Rule{item(in, 0, func(r *tables.Rule) {
				r.Peers = []uint32{peer}
				r.Ports = []tables.PolicyPort{{Protocol: 1, First: 8, Last: 8}}
			})},
			want: append(slices.Clone(open),
				"ingress 1 any: default allow", "ingress 1 type 8/icmp: allow [0]"),
		},
		{
			name: "all ports of a protocol",
			rules: []*tables.Rule{item(in, 0, func(r *tables.Rule) {
				r.Peers, r.Ports = []uint32{peer}, []tables.PolicyPort{{Protocol: 132, Last: 65535}}
			})},
			want: append(slices.Clone(open),
				"ingress 1 all/sctp: allow [0]", "ingress 1 any: default allow"),
		},
		{
			name: "a refused class", refused: true,
			rules: []*tables.Rule{item(in, 0, func(r *tables.Rule) { r.AnyPeer = true })},
			want: []string{
				"egress any any: default allow", "egress 1 any: default deny",
				"ingress any any: allow [0]", "ingress 1 any: default deny",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			r := ruleset(1, test.rules...)
			r.AlwaysDeny = test.always
			c := class(1, []uint32{peer}, tables.NamedPort{Name: "web", Protocol: 6, Port: 9090})
			if test.refused {
				c = refusedClass(1)
			}
			w.put(r, c)
			w.work()
			slices.Sort(test.want)
			require.Equal(t, test.want, w.describe())
		})
	}
}

// describe returns all verdicts as text, with the items that decide.
func (w *world) describe() (lines []string) {
	txn := w.db.ReadTxn()
	for e := range w.rule.Entries.All(txn) {
		class := e.TableRow()[1]
		for v := range w.rule.Verdicts.Prefix(txn, tables.VerdictsOfSet(e.Set)) {
			row := v.TableRow()
			line := fmt.Sprintf("%s %s %s: %s", e.Direction, class, row[1], row[2])
			var items []int32
			for _, id := range v.Rules {
				items = append(items, id.Item)
			}
			if len(items) > 0 {
				line += fmt.Sprint(" ", items)
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}
