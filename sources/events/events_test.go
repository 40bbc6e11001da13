// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestDecode(t *testing.T) {
	want := rawDrop()
	sample := append([]byte{}, unsafe.Slice((*byte)(unsafe.Pointer(want)), unsafe.Sizeof(*want))...)
	got, err := decode(sample)
	require.NoError(t, err)
	require.Equal(t, *want, got)

	shifted := append([]byte{0}, sample...)[1:] // as ill aligned as a record may be
	got, err = decode(shifted)
	require.NoError(t, err)
	require.Equal(t, *want, got)

	unknown := append([]byte{}, sample...)
	unknown[unsafe.Offsetof(want.Kind)] = 3
	w := start(t, noPrograms{})
	for _, bad := range [][]byte{nil, sample[:len(sample)-1], append(sample, 0), unknown} {
		_, err := decode(bad)
		require.ErrorContains(t, err, "decode event")
		w.record(bad)
	}
	require.Equal(t, Counts{Malformed: 4}, w.Counts(), "and they are counted")
	w.record(sample)
	require.Equal(t, Counts{Malformed: 4, Drops: 1}, w.Counts())
}

func TestEnrich(t *testing.T) {
	w := start(t, noPrograms{})
	w.enricher.wallTime = func(ns uint64) time.Time { return time.Unix(0, int64(ns)).UTC() }
	for _, tc := range []struct {
		name string
		raw  *bpf.Event
		want string // as JSON
		line string // without the time
	}{
		{"drop", rawDrop(), `{"kind":"drop","time":"1970-01-01T00:00:01Z","reason":"no egress gateway","program":"from_pod",
			"direction":"egress","ifIndex":12,"source":{"addr":"10.1.0.5","port":43210,"pod":"shop/web-1","node":"node-1"},
			"destination":{"addr":"203.0.113.9","port":443},"protocol":"TCP","tcpFlags":"S","length":74,"pod":"shop/web-1",
			"egressRuleset":3,"group":1,"policy":"partner","rule":"203.0.113.0/24"}`,
			"DROP no egress gateway: shop/web-1:43210 -> 203.0.113.9:443 TCP S, policy partner (203.0.113.0/24), 74 bytes"},
		{"flow", rawDrop(func(e *bpf.Event) {
			e.Kind, e.Reason, e.Gateway = bpf.EventFlow, bpf.ReasonToGateway, address("192.168.0.2")
			e.Egress, e.EgressPort, e.Destination = address("198.51.100.7"), [2]byte{0xa8, 0xca}, address("8.8.8.8")
		}), `{"kind":"flow","time":"1970-01-01T00:00:01Z","reason":"to gateway","program":"from_pod",
			"direction":"egress","ifIndex":12,"source":{"addr":"10.1.0.5","port":43210,"pod":"shop/web-1","node":"node-1"},
			"destination":{"addr":"8.8.8.8","port":443},"protocol":"TCP","tcpFlags":"S","length":74,"pod":"shop/web-1",
			"egressRuleset":3,"group":1,"policy":"all","rule":"0.0.0.0/0",
			"gateway":{"addr":"192.168.0.2","node":"node-2"},
			"egress":"198.51.100.7:43210"}`,
			"FLOW to gateway: shop/web-1:43210 -> 8.8.8.8:443 TCP S, policy all (0.0.0.0/0), gateway node-2 (192.168.0.2), egress 198.51.100.7:43210, 74 bytes"},
		{"ingress from an unknown node, ICMP echo of IPv6", rawDrop(func(e *bpf.Event) {
			e.Reason, e.Program, e.Direction = bpf.ReasonUnknownNode, bpf.ProgramFromOverlay, bpf.DirectionIngress
			e.Family, e.Protocol, e.ICMPType, e.IfIndex, e.Group = bpf.FamilyIPv6, 58, 128, 3, 0
			e.Source, e.Destination, e.SourcePort, e.DestPort = address("2001:db8::1"), address("fd00::5"), [2]byte{0, 9}, [2]byte{}
			e.Gateway = address("192.0.2.9")
		}), `{"kind":"drop","time":"1970-01-01T00:00:01Z","reason":"unknown overlay source","program":"from_overlay",
			"direction":"ingress","ifIndex":3,"source":{"addr":"2001:db8::1","port":9},
			"destination":{"addr":"fd00::5","pod":"shop/web-1","node":"node-1"},"protocol":"ICMPv6","icmpType":128,"length":74,
			"pod":"shop/web-1","egressRuleset":3,"policy":"all-6","rule":"::/0","gateway":{"addr":"192.0.2.9"}}`,
			"DROP unknown overlay source: 2001:db8::1 -> shop/web-1 ICMPv6 echo request id 9, policy all-6 (::/0), sender 192.0.2.9, 74 bytes"},
		{"an address that is not the pod's", rawDrop(func(e *bpf.Event) {
			e.Reason, e.Source, e.EgressRuleset, e.Group = bpf.ReasonUnknownSource, address("10.9.9.9"), 0, 0
			e.Protocol, e.TCPFlags, e.SourcePort, e.DestPort = 99, 0, [2]byte{}, [2]byte{}
		}), `{"kind":"drop","time":"1970-01-01T00:00:01Z","reason":"unknown source address","program":"from_pod",
			"direction":"egress","ifIndex":12,"source":{"addr":"10.9.9.9"},"destination":{"addr":"203.0.113.9"},
			"protocol":"protocol-99","length":74,"pod":"shop/web-1"}`,
			"DROP unknown source address: 10.9.9.9 -> 203.0.113.9 protocol-99, pod shop/web-1, 74 bytes"},
		{"an ICMP error has the ports of the flow that it is about", rawDrop(func(e *bpf.Event) {
			e.Protocol, e.ICMPType, e.Reason = 1, 3, bpf.ReasonPredatesPolicy
		}), `{"kind":"drop","time":"1970-01-01T00:00:01Z","reason":"predates policy","program":"from_pod",
			"direction":"egress","ifIndex":12,"source":{"addr":"10.1.0.5","port":43210,"pod":"shop/web-1","node":"node-1"},
			"destination":{"addr":"203.0.113.9","port":443},"protocol":"ICMP","icmpType":3,"length":74,"pod":"shop/web-1",
			"egressRuleset":3,"group":1,"policy":"partner","rule":"203.0.113.0/24"}`,
			"DROP predates policy: shop/web-1:43210 -> 203.0.113.9:443 ICMP unreachable, policy partner (203.0.113.0/24), 74 bytes"},
		{"no addresses, unknown numbers", &bpf.Event{Kind: bpf.EventDrop, Reason: 47, Program: 9},
			`{"kind":"drop","time":"1970-01-01T00:00:00Z","reason":"reason-47","program":"program-9","direction":"egress",
			"source":{"addr":""},"destination":{"addr":""},"protocol":"protocol-0"}`,
			"DROP reason-47: - -> - protocol-0, 0 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			event := w.enricher.enrich(tc.raw)
			text, err := json.Marshal(event)
			require.NoError(t, err)
			if tc.raw.Source == (bpf.Address{}) {
				tc.want = strings.ReplaceAll(tc.want,
					`"source":{"addr":""},"destination":{"addr":""},`, "") // zero
			}
			require.JSONEq(t, tc.want, string(text))
			var decoded tables.Event
			require.NoError(t, json.Unmarshal(text, &decoded))
			require.Equal(t, event, &decoded, "clients read it")
			_, line, _ := strings.Cut(event.String(), " ")
			require.Equal(t, tc.line, line)
		})
	}

	// A change of the tables is seen at once.
	tablestest.Insert(t, w.DB, w.RuleRows, rule(3, "203.0.113.9/32", "new"))
	tablestest.Insert(t, w.DB, w.PodRows, &tables.Pod{
		Addr: netip.MustParseAddr("10.1.0.6"), IfIndex: 13,
		Endpoint: tables.Name{Namespace: "shop", Name: "late"},
	})
	event := w.enricher.enrich(rawDrop(func(e *bpf.Event) { e.Source, e.IfIndex = address("10.9.9.9"), 13 }))
	require.Equal(t, "new", event.Policy)
	require.Equal(t, "shop/late", event.Pod)

	// Numbers of another slot are not those of the tables.
	event = w.enricher.enrich(rawDrop(func(e *bpf.Event) { e.Slot = 1 }))
	require.Equal(t, "other", event.Policy, "that of the ruleset which the pod has now")
	event = w.enricher.enrich(rawDrop(func(e *bpf.Event) { e.Slot, e.EgressRuleset = 1, 0 }))
	require.Empty(t, event.Policy, "none was looked up")
	event = w.enricher.enrich(rawDrop(func(e *bpf.Event) {
		e.Slot, e.Source = 1, address("10.2.0.5")
	}))
	require.Empty(t, event.Policy, "the pod has none now")
}

func TestWallTime(t *testing.T) {
	monotonic := func() uint64 {
		var now unix.Timespec
		require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
		return uint64(now.Nano())
	}
	for _, ago := range []time.Duration{0, time.Second, -time.Hour} {
		before := time.Now()
		got := wallTime(monotonic() - uint64(ago)).Add(ago)
		after := time.Now()
		require.False(t, got.Before(before), "%s is before %s", got, before)
		require.False(t, got.After(after), "%s is after %s", got, after)
	}
}

func TestEgressRuleFor(t *testing.T) {
	w := start(t, noPrograms{})
	for _, tc := range []struct {
		ruleset     uint32
		destination string
		want        string // "": none
	}{
		{3, "203.0.113.9", "partner"}, {3, "203.0.114.9", "all"}, {4, "203.0.113.9", "other"},
		{4, "203.0.113.8", ""},
		{5, "203.0.113.9", ""}, {3, "2001:db8::1", "all-6"}, {3, "0.0.0.0", "all"},
		{3, "::", "all-6"}, {4, "::", ""},
	} {
		got := tables.EgressRuleFor(
			w.DB.ReadTxn(), w.Rules, tc.ruleset, netip.MustParseAddr(tc.destination),
		)
		if tc.want == "" {
			require.Nil(t, got, "%v", tc)
			continue
		}
		require.NotNil(t, got, "%v", tc)
		require.Equal(t, tc.want, got.Policy, "%v", tc)
	}
}

func TestFilter(t *testing.T) {
	w := start(t, noPrograms{})
	drop, flow := rawDrop(), rawDrop(func(e *bpf.Event) {
		e.Kind, e.Reason, e.Source, e.Destination = bpf.EventFlow, bpf.ReasonPassed, address("10.2.0.5"), address("fd00::5")
	})
	for _, tc := range []struct {
		kinds, reasons, pods []string
		drop, flow, flows    bool
		text                 string
	}{
		{drop: true, flow: true, flows: true},
		{kinds: []string{"drop"}, drop: true, text: "kind=drop"},
		{kinds: []string{"flow", "drop"}, drop: true, flow: true, flows: true,
			text: "kind=drop&kind=flow"},
		{reasons: []string{"No-Egress-gateway"}, drop: true, text: "reason=no egress gateway"},
		{reasons: []string{"passed", "malformed packet"}, flow: true, flows: true,
			text: "reason=passed&reason=malformed packet"},
		{kinds: []string{"drop"}, reasons: []string{"passed"}, text: "kind=drop&reason=passed"},
		{pods: []string{"shop/web-1"}, drop: true, flow: true, flows: true, text: "pod=shop/web-1"},
		{pods: []string{"shop/db"}, flow: true, flows: true, text: "pod=shop/db"},
		{pods: []string{"db", "nobody"}, flow: true, flows: true, text: "pod=db&pod=nobody"},
		{pods: []string{"shop"}, flows: true, text: "pod=shop"},
		{pods: []string{"shop/"}, drop: true, flow: true, flows: true, text: "pod=shop/"},
		{pods: []string{"203.0.113.9"}, drop: true, flows: true, text: "pod=203.0.113.9"},
		{pods: []string{"::ffff:203.0.113.9"}, drop: true, flows: true, text: "pod=::ffff:203.0.113.9"},
		{pods: []string{"10.2.0.0/16"}, flow: true, flows: true, text: "pod=10.2.0.0/16"},
		{pods: []string{"fd00::/64"}, flow: true, flows: true, text: "pod=fd00::/64"},
	} {
		f, err := ParseFilter(tc.kinds, tc.reasons, tc.pods)
		require.NoError(t, err)
		require.Equal(t, tc.text, f.String())
		require.Equal(t, tc.flows, f.flows(), tc.text)
		require.Equal(t, tc.drop, f.wants(drop) && f.matches(w.enricher.enrich(drop)), tc.text)
		require.Equal(t, tc.flow, f.wants(flow) && f.matches(w.enricher.enrich(flow)), tc.text)
	}
	for _, tc := range []struct {
		kinds, reasons, pods []string
		message              string
	}{
		{kinds: []string{"lost"}, message: `unknown kind "lost": want drop or flow`},
		{reasons: []string{"bad luck"},
			message: `unknown reason "bad luck": want one of: passed, to gateway, `},
		{reasons: []string{"reason-47"}, message: `unknown reason "reason-47"`},
		{pods: []string{"Web"}, message: `unknown pod "Web": want namespace/name`},
		{pods: []string{""}, message: `unknown pod ""`},
		{pods: []string{"a/b/c"}, message: `unknown pod "a/b/c"`},
	} {
		_, err := ParseFilter(tc.kinds, tc.reasons, tc.pods)
		require.ErrorContains(t, err, tc.message)
	}
	require.Contains(t, Reasons(), "no SNAT port")
	require.NotContains(t, Reasons(), "reason-47")
	require.NotContains(t, Reasons(), "event lost", "it is never that of an event")
}

func TestDrops(t *testing.T) {
	w := start(t, noPrograms{})
	rows := func() (lines []string) {
		for row := range w.Drops.All(w.DB.ReadTxn()) {
			lines = append(lines, strings.Join(row.TableRow()[:6], " | "))
		}
		return lines
	}
	for range 3 {
		w.handle(rawDrop())
	}
	w.handle(rawDrop(func(e *bpf.Event) { e.Kind = bpf.EventFlow })) // is none
	w.handle(rawDrop(func(e *bpf.Event) {
		e.Direction, e.EgressRuleset = bpf.DirectionIngress, 0
		e.Source, e.Destination = address("203.0.113.9"), address("10.2.0.5")
	}))
	w.handle(rawDrop(func(e *bpf.Event) { e.Source, e.IfIndex, e.Reason = address("192.0.2.1"), 0, bpf.ReasonUnknownNode }))
	await.True(t, func() bool { return len(rows()) == 3 })
	// The second pod address is the same pod: the same row.
	w.handle(rawDrop(func(e *bpf.Event) { e.Source = address("fd00::5") }))
	want := []string{
		"- | egress | unknown overlay source | 1 | partner | 192.0.2.1:43210 -> 203.0.113.9:443 TCP S",
		"shop/db-1 | ingress | no egress gateway | 1 | - | 203.0.113.9:43210 -> 10.2.0.5:443 TCP S",
		"shop/web-1 | egress | no egress gateway | 4 | partner | [fd00::5]:43210 -> 203.0.113.9:443 TCP S",
	}
	await.True(t, func() bool { return fmt.Sprint(rows()) == fmt.Sprint(want) }, "%v", rows())
	require.Equal(t, []string{"Pod", "Direction", "Reason", "Count", "Policy", "Packet", "Last"},
		(&tables.Drop{}).TableHeader())
}

// A flood costs few transactions, and the table does not grow without bounds.
func TestDropsAreBounded(t *testing.T) {
	w := start(t, noPrograms{})
	r := newRecorder(w.DB, w.drops.table, w.enricher) // written by hand
	r.maxRows = 3
	ns := uint64(0)
	r.enricher.wallTime = func(ns uint64) time.Time { return time.Unix(0, int64(ns)).UTC() }
	add := func(reason bpf.Reason, changes ...func(*bpf.Event)) {
		ns++
		e := rawDrop(changes...)
		e.Reason, e.Time = reason, ns
		r.add(e)
	}
	reasons := func() (names []string) {
		for row := range w.Drops.LowerBound(w.DB.ReadTxn(), tables.DropsByLast(time.Unix(0, 0))) {
			names = append(names, fmt.Sprint(row.Reason, " ", row.Count))
		}
		return names
	}
	revision := w.Drops.Revision(w.DB.ReadTxn())
	for range 100_000 {
		add(bpf.ReasonNoGateway)
	}
	require.NoError(t, r.write())
	require.Equal(t, revision+1, w.Drops.Revision(w.DB.ReadTxn()), "one write of one row")

	add(bpf.ReasonMalformed)
	add(bpf.ReasonTooBig)
	require.NoError(t, r.write())
	add(bpf.ReasonNoGateway) // not the oldest any more
	add(bpf.ReasonNoEgressIP)
	require.NoError(t, r.write())
	require.Equal(t, []string{"packet too big 1", "no egress gateway 100001", "no egress IP 1"},
		reasons())

	// More senders than are told apart are counted together.
	for i := range maxPending + 100 {
		add(bpf.ReasonUnknownNode, func(e *bpf.Event) {
			e.IfIndex, e.Source = 3, bpf.AddressFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}))
		})
	}
	require.LessOrEqual(t, len(r.pending), maxPending+1)
	require.NoError(t, r.write())
	row, _, ok := w.Drops.Get(w.DB.ReadTxn(),
		tables.DropByKey(tables.DropKey{Direction: "egress", Reason: "unknown overlay source"}))
	require.True(t, ok)
	require.Equal(t, uint64(maxPending+100), row.Count)
}

// What a flood costs for each drop: without followers, and with one that is
// behind, so that every event is looked up in vain.
func BenchmarkHandle(b *testing.B) {
	w := start(b, noPrograms{})
	raw := rawDrop()
	b.Run("followers=0", func(b *testing.B) {
		for b.Loop() {
			w.handle(raw)
		}
	})
	end := follow(b, w.Source, Filter{}, func(*tables.Event) {})
	defer end()
	b.Run("followers=1", func(b *testing.B) {
		for b.Loop() {
			w.handle(raw)
		}
	})
}
