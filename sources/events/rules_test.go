// SPDX-License-Identifier: Apache-2.0

package events

import (
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/testdata/await"
)

func cookieRow(cookie uint32, fields ...string) *tables.RuleCookie {
	row := &tables.RuleCookie{Cookie: cookie}
	for _, field := range fields {
		row.Rules = append(row.Rules, tables.RuleID{Field: field, Policy: tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "web"}}})
	}
	return row
}

// Events and drops name the rules of network policies that decided.
func TestRulesOfEvents(t *testing.T) {
	w := start(t, noPrograms{})
	tablestest.Insert(t, w.DB, w.CookieRows,
		cookieRow(7, "spec.ingress[0]"), cookieRow(8, "spec.egress[0]", "spec.egress[1]"))
	denied := func(cookie uint32) *bpf.Event {
		return rawDrop(func(e *bpf.Event) {
			e.Reason, e.Cookie, e.EgressRuleset, e.Group = bpf.ReasonPolicyRule, cookie, 0, 0
		})
	}
	for _, tc := range []struct {
		cookie uint32
		rules  []string
		line   string
	}{
		{7, []string{"NetworkPolicy/shop/web spec.ingress[0]"}, ", rule NetworkPolicy/shop/web spec.ingress[0], 74 bytes"},
		{8, []string{"NetworkPolicy/shop/web spec.egress[0]", "NetworkPolicy/shop/web spec.egress[1]"},
			", rule NetworkPolicy/shop/web spec.egress[0] and NetworkPolicy/shop/web spec.egress[1], 74 bytes"},
		{9, nil, ", rule unknown (cookie 9), 74 bytes"},
		{0, nil, " TCP S, 74 bytes"},
	} {
		event := w.enricher.enrich(denied(tc.cookie))
		require.Equal(t, tc.rules, event.Rules)
		require.Equal(t, tc.cookie, event.Cookie)
		require.True(t, strings.HasSuffix(event.String(), tc.line), event.String())
	}
	w.handle(denied(7))
	await.True(t, func() bool {
		row, _, ok := w.Drops.Get(w.DB.ReadTxn(), tables.DropByKey(tables.DropKey{Pod: "shop/web-1", Direction: "egress", Reason: "policy denied by rule"}))
		return ok && row.Policy == "NetworkPolicy/shop/web spec.ingress[0]"
	})
	// A packet that a rule allows, and that is dropped for want of a gateway.
	w.handle(rawDrop(func(e *bpf.Event) { e.Cookie = 7 }))
	await.True(t, func() bool {
		row, _, ok := w.Drops.Get(w.DB.ReadTxn(), tables.DropByKey(tables.DropKey{Pod: "shop/web-1", Direction: "egress", Reason: "no egress gateway"}))
		return ok && row.Policy == "partner"
	})
}

// Rules have their names before their cookie has its row, as soon as the kernel
// can decide by them, and keep them when they are gone.
func TestRulesThatComeAndGo(t *testing.T) {
	w := start(t, noPrograms{})
	id := tables.RuleID{Policy: tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "web"}}, Item: 2, Field: "spec.egress[2]"}
	tablestest.Insert(t, w.DB, w.VerdictRows, &tables.Verdict{
		Key: bpf.VerdictKeyOf(5, 0, 0, 0), Value: bpf.VerdictValue{Cookie: 7}, Rules: []tables.RuleID{id},
	})
	event := rawDrop(func(e *bpf.Event) { e.Cookie = 7 })
	names := []string{"NetworkPolicy/shop/web spec.egress[2]"}
	w.enricher.remember(event)
	require.Equal(t, names, w.enricher.enrich(event).Rules)

	wtxn := w.DB.WriteTxn(w.VerdictRows)
	require.NoError(t, w.VerdictRows.DeleteAll(wtxn))
	wtxn.Commit()
	require.Equal(t, names, w.enricher.enrich(event).Rules)
	require.Nil(t, w.enricher.enrich(rawDrop(func(e *bpf.Event) { e.Cookie = 8 })).Rules)
}

// counting is a [Datapath] that counts rules.
type counting struct {
	noPrograms
	maps map[string]*ebpf.Map
}

func (c counting) Map(name string) *ebpf.Map { return c.maps[name] }

// newCounting returns maps as the programs have them.
func newCounting(t *testing.T) counting {
	c := counting{maps: map[string]*ebpf.Map{}}
	for name, spec := range map[string]*ebpf.MapSpec{
		bpf.RulesMap:     {Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 16, MaxEntries: 16},
		bpf.RuleSlotsMap: {Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: bpf.RuleSlots},
		bpf.DecidedMap:   {Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: bpf.RuleSlots},
	} {
		m, err := ebpf.NewMap(spec)
		if err != nil {
			require.Empty(t, os.Getenv("SLUICE_REQUIRE_PRIVILEGED"), "BPF maps are not possible here: %v", err)
			t.Skipf("BPF maps are not possible here: %v", err)
		}
		t.Cleanup(func() { m.Close() })
		c.maps[name] = m
	}
	return c
}

func TestRuleCounters(t *testing.T) {
	w := start(t, noPrograms{})
	tablestest.Insert(t, w.DB, w.CookieRows, cookieRow(7, "spec.ingress[0]"))
	counters, err := w.RuleCounters()
	require.NoError(t, err)
	require.Equal(t, []RuleCounter{{Cookie: 7, Rules: []string{"NetworkPolicy/shop/web spec.ingress[0]"}}}, counters, "without programs")

	c := newCounting(t)
	perCPU := make([]bpf.Metric, ebpf.MustPossibleCPU())
	for i := range perCPU {
		perCPU[i] = bpf.Metric{Packets: 2, Bytes: 100}
	}
	cpus := uint64(len(perCPU))
	crowded := func(cookie uint32) {
		require.NoError(t, c.maps[bpf.RulesMap].Put(bpf.RuleKey{Cookie: cookie}, perCPU))
	}
	count := func(cookie uint32) {
		require.NoError(t, c.maps[bpf.RuleSlotsMap].Put(cookie%bpf.RuleSlots, cookie))
		require.NoError(t, c.maps[bpf.DecidedMap].Put(cookie%bpf.RuleSlots, perCPU))
	}
	count(7)
	crowded(7) // from when its slot was another's
	crowded(7 + bpf.RuleSlots)
	count(99)

	w = start(t, c)
	tablestest.Insert(t, w.DB, w.CookieRows,
		cookieRow(7, "spec.ingress[0]"), cookieRow(8, "spec.ingress[1]"),
		cookieRow(7+bpf.RuleSlots, "spec.ingress[2]"))
	counters, err = w.RuleCounters()
	require.NoError(t, err)
	require.Equal(t, []RuleCounter{
		{7, []string{"NetworkPolicy/shop/web spec.ingress[0]"}, 4 * cpus, 200 * cpus},
		{8, []string{"NetworkPolicy/shop/web spec.ingress[1]"}, 0, 0},
		{7 + bpf.RuleSlots, []string{"NetworkPolicy/shop/web spec.ingress[2]"}, 2 * cpus, 100 * cpus},
		{99, []string{}, 2 * cpus, 100 * cpus},
	}, counters)

	// A cookie may come into the kernel before it is known here: it has to be
	// of no rule for two sweeps.
	has := func(cookie uint32) bool {
		counters, err := w.rules.read()
		require.NoError(t, err)
		_, found := counters[cookie]
		return found
	}
	require.NoError(t, w.rules.sweep(t.Context()))
	require.True(t, has(99))
	count(100)
	require.NoError(t, w.rules.sweep(t.Context()))
	require.False(t, has(99))
	require.True(t, has(100))
	tablestest.Insert(t, w.DB, w.CookieRows, cookieRow(100, "spec.ingress[2]"))
	require.NoError(t, w.rules.sweep(t.Context()))
	require.True(t, has(100))
	require.True(t, has(7))
	require.True(t, has(7+bpf.RuleSlots))
	var left []bpf.Metric
	require.NoError(t, c.maps[bpf.DecidedMap].Lookup(uint32(99), &left))
	require.Equal(t, make([]bpf.Metric, cpus), left, "who takes the slot next begins with nothing")

	// Nothing is removed while it is not known yet which rules there are.
	wtxn := w.DB.WriteTxn(w.CookieRows)
	done := w.CookieRows.RegisterInitializer(wtxn, "rules")
	require.NoError(t, w.CookieRows.DeleteAll(wtxn))
	wtxn.Commit()
	for range 3 {
		require.NoError(t, w.rules.sweep(t.Context()))
	}
	require.True(t, has(7))
	wtxn = w.DB.WriteTxn(w.CookieRows)
	done(wtxn)
	wtxn.Commit()
	for range 2 {
		require.NoError(t, w.rules.sweep(t.Context()))
	}
	require.False(t, has(7))
	require.Empty(t, statedb.Collect(w.Cookies.All(w.DB.ReadTxn())))

	// The slots are read first, so their map is the last to be closed.
	for _, broken := range []struct{ name, says string }{{bpf.RulesMap, "read sluice_rules"}, {bpf.RuleSlotsMap, "dump map"}} {
		require.NoError(t, c.maps[broken.name].Close())
		_, err = w.RuleCounters()
		require.ErrorContains(t, err, broken.says)
	}
}
