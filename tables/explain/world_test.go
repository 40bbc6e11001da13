// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an [Explainer] over tables and maps that a test fills.
type world struct {
	*Explainer
	Tables
	t    testing.TB
	maps *bpf.Maps
}

func newTables(t testing.TB) Tables {
	db := statedb.New()
	return Tables{
		DB: db, LocalNode: tables.LocalNode{Name: "node-1"},
		Endpoints:      tablestest.OpenEndpoints(t, db, "node-1"),
		Nodes:          tablestest.Open(t, db, tables.NewNodeTable),
		NodeAddresses:  tablestest.Open(t, db, tables.NewNodeAddressTable),
		Services:       tablestest.Open(t, db, tables.NewServiceTable),
		Backends:       tablestest.Open(t, db, tables.NewBackendSliceTable),
		Pods:           tablestest.Open(t, db, tables.NewPodTable),
		Subjects:       tablestest.Open(t, db, tables.NewSubjectTable),
		Routes:         tablestest.Open(t, db, tables.NewSubjectRouteTable),
		IPCache:        tablestest.Open(t, db, tables.NewIPCacheTable),
		Frontends:      tablestest.Open(t, db, tables.NewFrontendTable),
		Members:        tablestest.Open(t, db, tables.NewMemberTable),
		Entries:        tablestest.Open(t, db, tables.NewPolicyEntryTable),
		Verdicts:       tablestest.Open(t, db, tables.NewVerdictTable),
		Configs:        tablestest.Open(t, db, tables.NewDatapathConfigTable),
		EgressRules:    tablestest.Open(t, db, tables.NewEgressRuleTable),
		Blocks:         tablestest.Open(t, db, tables.NewEgressBlockTable),
		Gateways:       tablestest.Open(t, db, tables.NewEgressGatewayTable),
		Covered:        tablestest.Open(t, db, tables.NewCoveredPrefixTable),
		Classes:        tablestest.Open(t, db, tables.NewClassTable),
		Selectors:      tablestest.Open(t, db, tables.NewSelectorTable),
		Rulesets:       tablestest.Open(t, db, tables.NewRulesetTable),
		Cookies:        tablestest.Open(t, db, tables.NewRuleCookieTable),
		EgressRulesets: tablestest.Open(t, db, tables.NewEgressRulesetTable),
	}
}

// inMemory are maps in memory.
func inMemory(t testing.TB) *bpf.Maps {
	return openMaps(t, nil, cell.Provide(func() bpf.Backend { return bpf.NewMemory() }))
}

// inKernel are maps of the kernel, in a BPF file system of the test's own.
func inKernel(t testing.TB) *bpf.Maps {
	path := filepath.Join(t.TempDir(), "bpffs")
	if err := bpf.Probe(path); err != nil {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") == "1" {
			t.Fatalf("kernel maps are not possible here: %v", err)
		}
		t.Skipf("kernel maps are not possible here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
	return openMaps(t, []string{"--bpf=kernel", "--bpffs=" + path})
}

func openMaps(t testing.TB, args []string, cells ...cell.Cell) (maps *bpf.Maps) {
	h := hive.New(append(cells, bpf.Cell, cell.Invoke(func(m *bpf.Maps) { maps = m }))...)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	require.NoError(t, flags.Parse(args))
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
	require.NoError(t, h.Start(log, t.Context()))
	t.Cleanup(func() { require.NoError(t, h.Stop(log, context.Background())) })
	return maps
}

func newWorld(t testing.TB, maps *bpf.Maps) *world {
	require.NoError(t, maps.Flip())
	w := &world{t: t, maps: maps, Tables: newTables(t)}
	w.Explainer = New(w.Tables, maps)
	w.fill()
	return w
}

// both inserts rows, and the entries that they want.
func both[K, V comparable, Row interface {
	MapKey() K
	MapValue() V
}](w *world, table statedb.Table[Row], m bpf.Map[K, V], rows ...Row) {
	tablestest.Insert(w.t, w.DB, table, rows...)
	for _, row := range rows {
		_, err := m.Update([]K{row.MapKey()}, []V{row.MapValue()})
		require.NoError(w.t, err)
	}
}

func addr(text string) netip.Addr     { return netip.MustParseAddr(text) }
func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }
func name(text string) tables.Name {
	id, err := tables.ParsePolicyID("NetworkPolicy/" + text)
	if err != nil {
		panic(err)
	}
	return id.Name
}

// Subjects, rulesets, and classes of the world. There is a member for each class, with a
// number of its own.
const (
	subjectWeb    = 1
	subjectClient = 2

	rulesetWeb = 5

	classOther  = 9
	classWorld  = 10
	classHost   = 11
	classClient = 12
	classDB     = 13
	classNode   = 14
)

func memberOf(class uint32) uint32 { return 100 + class }

var (
	policyWeb  = tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "web"}}
	policyDeny = tables.PolicyID{Kind: tables.PolicyCilium, Name: tables.Name{Namespace: "shop", Name: "no-db"}}
)

// pair has a ruleset lead to a verdict set.
func (w *world) pair(ruleset, class uint32, direction bpf.Direction, set uint32) {
	both(w, w.Entries, w.maps.Policy,
		&tables.PolicyEntry{
			Ruleset: ruleset, Class: class, Direction: direction, Set: set,
			Reconciled: tables.Done(),
		})
}

func allow() bpf.VerdictValue        { return bpf.VerdictValue{} }
func deny() bpf.VerdictValue         { return bpf.VerdictValue{Deny: 1} }
func defaultAllow() bpf.VerdictValue { return bpf.VerdictValue{Default: 1} }
func defaultDeny() bpf.VerdictValue  { return bpf.VerdictValue{Default: 1, Deny: 1} }

// verdict has a set say something of traffic, by rules.
func (w *world) verdict(key bpf.VerdictKey, value bpf.VerdictValue, rules ...*tables.Rule) {
	v := &tables.Verdict{Key: key, Value: value, Reconciled: tables.Done()}
	for _, r := range rules {
		v.Rules = append(v.Rules, r.RuleID)
	}
	v.Value.Cookie = tables.CookieOf(v.Rules)
	both(w, w.Verdicts, w.maps.Verdicts, v)
}

func (w *world) rule(policy tables.PolicyID, item int, field string) *tables.Rule {
	r := &tables.Rule{
		RuleID: tables.RuleID{Policy: policy, Direction: bpf.DirectionIngress, Item: int32(item), Field: field},
	}
	tablestest.Insert(w.t, w.DB, w.Cookies, &tables.RuleCookie{
		Cookie: tables.CookieOf([]tables.RuleID{r.RuleID}), Rules: []tables.RuleID{r.RuleID},
	})
	return r
}

// fill makes a cluster: shop/web is selected by policies for ingress, from clients
// on 80/tcp and 8000-8007/tcp only, and never from databases.
func (w *world) fill() {
	ports := []tables.NamedPort{{Name: "http", Protocol: 6, Port: 80}}
	pod := func(id, node string, labels map[string]string, addrs ...netip.Addr) {
		set := tables.NewLabelSet(name(id).Namespace, "", labels, ports)
		tablestest.Insert(w.t, w.DB, w.Endpoints, &tables.Endpoint{
			Name: name(id), Node: node, Addrs: addrs, LabelSet: set,
		})
	}
	pod("shop/web", "node-1", map[string]string{"app": "web"}, addr("10.1.0.5"), addr("fd00::5"))
	pod("shop/client", "node-1", map[string]string{"app": "client"}, addr("10.1.0.6"))
	pod("shop/db", "node-2", map[string]string{"app": "db"}, addr("10.2.0.5"))
	pod("other/web", "node-2", map[string]string{"app": "web"}, addr("10.2.0.6"))
	tablestest.Insert(w.t, w.DB, w.Endpoints, &tables.Endpoint{
		Name: name("shop/pending"), Node: "node-1", LabelSet: &tables.LabelSet{},
	})
	tablestest.Insert(w.t, w.DB, w.Nodes,
		&tables.Node{Name: "node-1", InternalIPs: []netip.Addr{addr("192.168.0.1")}, PodCIDRs: []netip.Prefix{prefix("10.1.0.0/24")}},
		&tables.Node{Name: "node-2", InternalIPs: []netip.Addr{addr("192.168.0.2")}, PodCIDRs: []netip.Prefix{prefix("10.2.0.0/24")}})
	tablestest.Insert(w.t, w.DB, w.Services,
		&tables.Service{
			Name: name("shop/web"), Selector: map[string]string{"app": "web"}, Addrs: []netip.Addr{addr("10.96.0.10")},
			Ports: []tables.ServicePort{{Name: "https", Protocol: 6, Port: 443, TargetName: "http"}, {Name: "admin", Protocol: 6, Port: 80, TargetPort: 8007}},
		},
		&tables.Service{Name: name("shop/db"), Addrs: []netip.Addr{addr("10.96.0.11")}, Ports: []tables.ServicePort{{Protocol: 6, Port: 5432, TargetPort: 5432}}},
		&tables.Service{Name: name("shop/nobody"), Addrs: []netip.Addr{addr("10.96.0.12")}, Ports: []tables.ServicePort{{Protocol: 6, Port: 80, TargetPort: 80}}})
	tablestest.Insert(w.t, w.DB, w.Backends,
		&tables.BackendSlice{
			Name: name("shop/db-abc"), Service: name("shop/db"), Addrs: []netip.Addr{addr("10.2.0.5"), addr("10.1.0.6")},
			Ports: []tables.BackendPort{{Protocol: 6, Port: 15432}},
		},
		&tables.BackendSlice{Name: name("shop/db-2-abc"), Service: name("shop/db-2"), Addrs: []netip.Addr{addr("10.9.9.9")}},
		&tables.BackendSlice{Name: name("default/kubernetes"), Service: tables.KubernetesAPIService, Addrs: []netip.Addr{addr("192.168.0.2")}})

	both(w, w.Configs, w.maps.Config, &tables.DatapathConfig{
		Underlay: addr("192.168.0.1"), Flags: bpf.ConfigAllowLocalhost | bpf.ConfigNetworkPolicies,
	})
	for class := uint32(classOther); class <= classNode; class++ {
		tablestest.Insert(w.t, w.DB, w.Classes, &tables.Class{
			Life: tables.Life{Number: class}, Digest: bpf.Digest{byte(class)},
		})
		both(w, w.Members, w.maps.Peers, &tables.Member{
			Life: tables.Life{Number: memberOf(class)}, Digest: bpf.Digest{byte(class)},
			Class: class, Reconciled: tables.Done(),
		})
	}
	cached := func(p string, class uint32, flags bpf.IPCacheFlags) *tables.IPCache {
		return &tables.IPCache{
			Prefix: prefix(p), Member: memberOf(class), Flags: flags, Reconciled: tables.Done(),
		}
	}
	inside := bpf.IPCacheInCluster
	both(w, w.IPCache, w.maps.IPCache,
		cached("0.0.0.0/0", classWorld, 0), cached("::/0", classWorld, 0),
		cached("192.168.0.1/32", classHost, inside|bpf.IPCacheHost|bpf.IPCacheNode),
		cached("192.168.0.2/32", classNode, inside|bpf.IPCacheNode),
		cached("10.1.0.0/24", classOther, inside),
		cached("10.1.0.5/32", classOther, inside|bpf.IPCachePod),
		cached("fd00::5/128", classOther, inside|bpf.IPCachePod),
		cached("10.1.0.6/32", classClient, inside|bpf.IPCachePod),
		cached("10.2.0.5/32", classDB, inside|bpf.IPCachePod),
		cached("10.96.0.10/32", classOther, inside|bpf.IPCacheService),
		cached("10.96.0.11/32", classOther, inside|bpf.IPCacheService),
		cached("10.96.0.12/32", classOther, inside|bpf.IPCacheService),
		cached("169.254.0.0/16", classWorld, bpf.IPCacheLocalScope))
	both(w, w.Subjects, w.maps.Subjects,
		&tables.Subject{
			Life: tables.Life{Number: subjectWeb}, Ruleset: rulesetWeb, Reconciled: tables.Done(),
		},
		&tables.Subject{
			Life: tables.Life{Number: subjectClient}, Ruleset: bpf.EmptyRuleset,
			Reconciled: tables.Done(),
		})
	local := func(a, pod string, subject uint32) *tables.Pod {
		return &tables.Pod{
			Addr: addr(a), Endpoint: name(pod), IfIndex: 12, Subject: subject, Local: true,
			Reconciled: tables.Done(),
		}
	}
	both(w, w.Pods, w.maps.Pods,
		local("10.1.0.5", "shop/web", subjectWeb), local("fd00::5", "shop/web", 0),
		local("10.1.0.6", "shop/client", subjectClient))
	w.fillPolicy()
	w.fillEgress()
}

// fillPolicy makes the ruleset of shop/web.
func (w *world) fillPolicy() {
	rest := w.rule(policyWeb, -1, "spec.ingress")
	http := w.rule(policyWeb, 0, "spec.ingress[0]")
	ranges := w.rule(policyWeb, 1, "spec.ingress[1]")
	db := w.rule(policyDeny, 0, "spec.ingressDeny[0]")
	tablestest.Insert(w.t, w.DB, w.Rulesets, &tables.Ruleset{
		Life: tables.Life{Number: rulesetWeb}, Digest: bpf.Digest{rulesetWeb},
		Policies: []tables.PolicyID{db.Policy, rest.Policy},
		Rules:    []*tables.Rule{db, rest, http, ranges},
	})
	const setEgress, setAny, setClient, setDB = 1, 2, 3, 4
	w.verdict(bpf.VerdictKeyOf(setEgress, 0, 0, 0), defaultAllow())
	for _, set := range []uint32{setAny, setClient} {
		w.verdict(bpf.VerdictKeyOf(set, 0, 0, 0), defaultDeny(), rest)
		w.verdict(bpf.VerdictKeyOf(set, 1, 8, 16), allow(), http)
	}
	w.verdict(bpf.VerdictKeyOf(setClient, 6, 80, 16), allow(), http)
	w.verdict(bpf.VerdictKeyOf(setClient, 6, 8000, 13), allow(), ranges)
	w.verdict(bpf.VerdictKeyOf(setDB, 0, 0, 0), deny(), db)
	w.pair(rulesetWeb, bpf.AnyClass, bpf.DirectionEgress, setEgress)
	w.pair(rulesetWeb, bpf.AnyClass, bpf.DirectionIngress, setAny)
	w.pair(rulesetWeb, classClient, bpf.DirectionIngress, setClient)
	w.pair(rulesetWeb, classDB, bpf.DirectionIngress, setDB)
}

// fillEgress has shop/client leave by node-2 to one prefix, by this node to
// another, and by no gateway to a third.
func (w *world) fillEgress() {
	both(w, w.Routes, w.maps.Routes, &tables.SubjectRoute{Subject: subjectClient, EgressRuleset: 7, Reconciled: tables.Done()})
	tablestest.Insert(w.t, w.DB, w.EgressRulesets, &tables.EgressRuleset{
		Life: tables.Life{Number: 7}, Policies: []string{"bank", "partner"},
	})
	both(w, w.EgressRules, w.maps.Egress,
		&tables.EgressRule{
			Ruleset: 7, Destination: prefix("198.51.100.0/24"), Group: 1, Policy: "bank",
			Overrides: []string{"partner"},
		},
		&tables.EgressRule{
			Ruleset: 7, Destination: prefix("198.51.100.128/25"), Group: bpf.GroupExcluded,
			Policy: "bank",
		},
		&tables.EgressRule{
			Ruleset: 7, Destination: prefix("203.0.113.0/24"), Group: 2, Policy: "partner",
		},
		&tables.EgressRule{
			Ruleset: 7, Destination: prefix("192.0.2.0/24"), Group: 3, Policy: "partner",
		})
	bucket := bucketOf(addr("10.1.0.6"))
	both(w, w.Gateways, w.maps.Gateways,
		&tables.EgressGateway{GatewayKey: bpf.GatewayKey{Group: 1, Bucket: bucket}, Node: "node-2", Addr: addr("192.168.0.2")},
		&tables.EgressGateway{
			GatewayKey: bpf.GatewayKey{Group: 2, Bucket: bucket}, Node: "node-1", Addr: addr("192.168.0.1"),
			EgressIPv4: addr("203.0.113.101"), IfIndex: 2, Device: "eth0",
		},
		&tables.EgressGateway{GatewayKey: bpf.GatewayKey{Group: 3, Bucket: bucket}, Reason: "no node matches role=gateway"})
	both(w, w.Covered, w.maps.Covered, &tables.CoveredPrefix{Prefix: prefix("198.51.100.0/24")})
}
