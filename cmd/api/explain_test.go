// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/explain"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// explainable is an API that knows one pod of its node, which accepts only 80/tcp.
func explainable(t testing.TB, maps *bpf.Maps) *handlers {
	db := statedb.New()
	health, err := tables.NewHealthTable(db)
	require.NoError(t, err)
	addr := netip.MustParseAddr("10.1.0.5")
	allow := tables.RuleID{
		Field: "spec.ingress[0]",
		Policy: tables.PolicyID{
			Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "web"},
		},
		Direction: bpf.DirectionIngress,
	}
	verdict := func(
		protocol uint8, port uint16, bits int, v bpf.VerdictValue, rules ...tables.RuleID,
	) *tables.Verdict {
		return &tables.Verdict{
			Key: bpf.VerdictKeyOf(4, protocol, port, bits), Value: v, Rules: rules,
			Reconciled: tables.Done(),
		}
	}
	return &handlers{db: db, health: health, limits: newLimits(), explain: explain.New(explain.Tables{
		DB: db, LocalNode: tables.LocalNode{Name: "node-1"},
		Endpoints: tablestest.OpenEndpoints(t, db, "node-1", &tables.Endpoint{
			Name: tables.Name{Namespace: "shop", Name: "web"}, Node: "node-1", Addrs: []netip.Addr{addr}, LabelSet: &tables.LabelSet{},
		}),
		Nodes:         tablestest.Open(t, db, tables.NewNodeTable),
		NodeAddresses: tablestest.Open(t, db, tables.NewNodeAddressTable),
		Services:      tablestest.Open(t, db, tables.NewServiceTable),
		Backends:      tablestest.Open(t, db, tables.NewBackendSliceTable),
		Frontends:     tablestest.Open(t, db, tables.NewFrontendTable),
		IPCache: tablestest.Open(t, db, tables.NewIPCacheTable,
			&tables.IPCache{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Member: 3}),
		Pods: tablestest.Open(t, db, tables.NewPodTable,
			&tables.Pod{Addr: addr, Subject: 1, Local: true}),
		Subjects: tablestest.Open(t, db, tables.NewSubjectTable,
			&tables.Subject{Life: tables.Life{Number: 1}, Ruleset: 2}),
		Routes: tablestest.Open(t, db, tables.NewSubjectRouteTable),
		Members: tablestest.Open(t, db, tables.NewMemberTable,
			&tables.Member{Life: tables.Life{Number: 3}, Class: 3}),
		Entries: tablestest.Open(t, db, tables.NewPolicyEntryTable,
			&tables.PolicyEntry{Ruleset: 2, Direction: bpf.DirectionIngress, Set: 4}),
		Verdicts: tablestest.Open(t, db, tables.NewVerdictTable,
			verdict(6, 80, 16, bpf.VerdictValue{}, allow), verdict(0, 0, 0, bpf.VerdictValue{Deny: 1, Default: 1})),
		Configs:     tablestest.Open(t, db, tables.NewDatapathConfigTable),
		EgressRules: tablestest.Open(t, db, tables.NewEgressRuleTable),
		Gateways:    tablestest.Open(t, db, tables.NewEgressGatewayTable),
		Blocks:      tablestest.Open(t, db, tables.NewEgressBlockTable),
		Covered:     tablestest.Open(t, db, tables.NewCoveredPrefixTable),
		Classes:     tablestest.Open(t, db, tables.NewClassTable),
		Selectors:   tablestest.Open(t, db, tables.NewSelectorTable),
		Rulesets: tablestest.Open(t, db, tables.NewRulesetTable, &tables.Ruleset{
			Life: tables.Life{Number: 2}, Policies: []tables.PolicyID{allow.Policy},
			Rules: []*tables.Rule{{RuleID: allow, AnyPeer: true}},
		}),
		Cookies:        tablestest.Open(t, db, tables.NewRuleCookieTable),
		EgressRulesets: tablestest.Open(t, db, tables.NewEgressRulesetTable),
	}, maps)}
}

func (h *handlers) ask(path string) (status int, text string) {
	w := httptest.NewRecorder()
	h.mux(false).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestExplain(t *testing.T) {
	h := explainable(t, nil)
	for path, want := range map[string]string{
		"/explain/policy?from=203.0.113.9&to=shop/web&port=80&protocol=tcp": `"allowed"`,
		"/explain/policy?from=world&to=10.1.0.5&port=80/udp":                `"denied"`,
		ExplainPolicyPath("world", "shop/web", "81/tcp"):                    `"denied"`,
		ExplainEgressPath("shop/web", "203.0.113.9"):                        `"allowed"`,
	} {
		status, body := h.ask(path)
		require.Equal(t, http.StatusOK, status, body)
		var answer map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(body), &answer))
		require.Equal(t, want, string(answer["verdict"]), path)
		for _, field := range []string{"reason", "rules", "entry", "differences"} {
			require.Contains(t, answer, field, path)
		}
		require.NotContains(t, answer, "kernel", "there are no maps")
	}
	for path, want := range map[string]string{
		"/explain/policy?from=shop/none&to=shop/web&port=80":          "from",
		"/explain/policy?from=world&port=80":                          "to",
		"/explain/policy?from=world&to=shop/web":                      "port",
		"/explain/policy?from=world&to=shop/web&port=80&protocol=tpc": "protocol",
		"/explain/policy?from=world&to=shop/web&port=80&prot=tcp":     "prot",
		"/explain/policy?from=world&to=shop/web&port=80&port=81":      "port",
		"/explain/egress?from=world&to=203.0.113.9":                   "from",
		"/explain/egress?from=shop/web&to=203.0.113.9&port=80":        "port",
		"/explain/egress?from=shop/web":                               "to",
	} {
		status, body := h.ask(path)
		require.Equal(t, http.StatusBadRequest, status, path)
		var answer errorBody
		require.NoError(t, json.Unmarshal([]byte(body), &answer))
		require.Equal(t, want, answer.Field, path)
		require.True(t, strings.HasPrefix(answer.Err, want+": "), answer.Err)
	}
	h.explain = nil
	status, _ := h.ask("/explain/policy?from=world&to=shop/web&port=80")
	require.Equal(t, http.StatusServiceUnavailable, status)
	status, _ = h.ask("/rules")
	require.Equal(t, http.StatusServiceUnavailable, status)
}

func TestExplainLines(t *testing.T) {
	h := explainable(t, nil)
	lines, differ, err := h.explainLines([]string{"policy", "world", "shop/web", "80/tcp"})
	require.NoError(t, err)
	require.False(t, differ)
	require.Equal(t, []string{"verdict: allowed", "ingress allowed: allowed by rule NetworkPolicy/shop/web spec.ingress[0]", "kernel: same"}, lines)
	_, _, err = h.explainLines([]string{"policy", "world", "shop/web"})
	require.Error(t, err)

	h = explainable(t, emptyMaps(t))
	lines, differ, err = h.explainLines([]string{"policy", "world", "shop/web", "80/tcp"})
	require.NoError(t, err)
	require.True(t, differ)
	require.Contains(t, lines[2], "kernel: ingress: by the tables allowed (allowed by rule NetworkPolicy/shop/web spec.ingress[0]), by the maps not judged")
	lines, differ, err = h.explainLines([]string{"egress", "shop/web", "203.0.113.9"})
	require.NoError(t, err)
	require.True(t, differ)
	require.Equal(t, []string{
		"verdict: allowed", "passed",
		"kernel: by the tables it is passed, by the maps not from a pod of this node",
	}, lines)
}

// emptyMaps are maps in memory that have nothing.
func emptyMaps(t testing.TB) (maps *bpf.Maps) {
	h := hive.New(
		cell.Provide(func() bpf.Backend { return bpf.NewMemory() }), bpf.Cell,
		cell.Invoke(func(m *bpf.Maps) { maps = m }))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	require.NoError(t, maps.Flip())
	return maps
}

// A table of network policies says how each stands.
func TestNetworkPolicies(t *testing.T) {
	db := statedb.New()
	name := func(text string) tables.Name { return tables.Name{Namespace: "shop", Name: text} }
	tablestest.Open(t, db, tables.NewNetworkPolicyTable,
		&tables.NetworkPolicy{Kind: tables.PolicyKubernetes, Name: name("web")}, &tables.NetworkPolicy{Kind: tables.PolicyKubernetes, Name: name("new")})
	h := &handlers{db: db, limits: newLimits()}
	_, body := h.ask("/tables/network-policies")
	require.Regexp(t, `^Kind +Name +Subjects `, body)
	h.tables.Network = tablestest.Open(t, db, tables.NewNetworkPolicyStatusTable,
		&tables.NetworkPolicyStatus{
			Policy: tables.PolicyID{Kind: tables.PolicyKubernetes, Name: name("web")},
			State:  tables.PolicyFailed, Wanted: 9, Compiled: 7, EntriesWanted: 5, Programmed: 3,
			Failed: 2,
		})
	_, body = h.ask("/tables/network-policies")
	require.Regexp(t, `^Kind +Name +State +Programmed +Failed +Revision +Subjects `, body)
	require.Regexp(t, `(?m)^NetworkPolicy +shop/web +failed +3/5 +2 +7/9 +-`, body)
	require.Regexp(t, `(?m)^NetworkPolicy +shop/new +- +- +- +- +-`, body)
	_, body = h.ask("/tables/network-policy-status")
	require.Regexp(t, `^Kind +Name +State +Programmed +Failed `, body)
}

// Classes name selectors by number: people see what these are.
func TestClasses(t *testing.T) {
	db := statedb.New()
	office := tables.SelectorSpecs([]tables.PolicyPeer{
		{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{CIDR: netip.MustParsePrefix("203.0.113.0/24")}},
	})[0]
	tablestest.Open(t, db, tables.NewClassTable,
		&tables.Class{Life: tables.Life{Number: 7}, Digest: bpf.Digest{7}, Selectors: []uint32{4, 5}},
		&tables.Class{Life: tables.Life{Number: 8}, Digest: bpf.Digest{8}, Precision: tables.Refused})
	h := &handlers{db: db, limits: newLimits()}
	_, body := h.ask("/tables/peer-classes")
	require.Regexp(t, `(?m)^7 +4 \| 5 `, body)
	h.tables.Selectors = tablestest.Open(t, db, tables.NewSelectorTable, &tables.Selector{
		Life: tables.Life{Number: 4}, SelectorSpec: office,
	})
	_, body = h.ask("/tables/peer-classes")
	require.Regexp(t, `(?m)^7 +203\.0\.113\.0/24 \| 5 `, body)
	require.Regexp(t, `(?m)^8 +- +\[\] +refused `, body)
}

// What a question costs over HTTP, without the connection.
func BenchmarkExplain(b *testing.B) {
	h := explainable(b, nil)
	mux := h.mux(false)
	for b.Loop() {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/explain/policy?from=203.0.113.9&to=shop/web&port=80&protocol=tcp", nil))
		if w.Code != http.StatusOK {
			b.Fatal(w.Body)
		}
	}
}

func TestExplainNotReady(t *testing.T) {
	w := httptest.NewRecorder()
	writeAnswer(w, nil, fmt.Errorf("%w: not complete yet: ipcache", explain.ErrNotReady))
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "the agent is not ready: not complete yet: ipcache")
}
