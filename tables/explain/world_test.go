// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is an [Explainer] over tables and maps that a test fills.
type world struct {
	*Explainer
	Tables
	t    testing.TB
	maps *bpf.Maps
}

func table[Row any](t testing.TB, db *statedb.DB, construct func(*statedb.DB) (statedb.RWTable[Row], error)) statedb.Table[Row] {
	rw, err := construct(db)
	require.NoError(t, err)
	return rw
}

func newEndpoints(db *statedb.DB) (statedb.RWTable[*tables.Endpoint], error) {
	return tables.NewEndpointTable(db, tables.LocalNode{Name: "node-1"})
}

func newTables(t testing.TB) Tables {
	db := statedb.New()
	return Tables{
		DB: db, LocalNode: tables.LocalNode{Name: "node-1"}, Slots: table(t, db, tables.NewSlotTable),
		Endpoints: table(t, db, newEndpoints),
		Nodes:     table(t, db, tables.NewNodeTable), NodeAddresses: table(t, db, tables.NewNodeAddressTable),
		Services: table(t, db, tables.NewServiceTable), Backends: table(t, db, tables.NewBackendSliceTable),
		Locals: table(t, db, tables.NewLocalEndpointTable), IPCache: table(t, db, tables.NewIPCacheTable),
		Entries: table(t, db, tables.NewPolicyEntryTable), Configs: table(t, db, tables.NewDatapathConfigTable),
		Sources: table(t, db, tables.NewEgressSourceTable), EgressRules: table(t, db, tables.NewEgressRuleTable),
		Gateways: table(t, db, tables.NewEgressGatewayTable), Covered: table(t, db, tables.NewCoveredPrefixTable),
		Members: table(t, db, tables.NewClassMemberTable), Selectors: table(t, db, tables.NewSelectorTable),
		Rules: table(t, db, tables.NewEnforcedPolicyTable), Cookies: table(t, db, tables.NewRuleCookieTable),
		EgressClasses: table(t, db, tables.NewEgressClassTable),
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
	w := &world{t: t, maps: maps, Tables: newTables(t)}
	w.Explainer = New(w.Tables, LiveMaps{maps})
	w.fill()
	return w
}

func insert[Row any](w *world, table statedb.Table[Row], rows ...Row) {
	wtxn := w.DB.WriteTxn(table)
	defer wtxn.Abort()
	for _, row := range rows {
		_, _, err := table.(statedb.RWTable[Row]).Insert(wtxn, row)
		require.NoError(w.t, err)
	}
	wtxn.Commit()
}

// both inserts rows, and the entries that they want.
func both[K, V comparable, Row interface {
	MapKey() K
	MapValue() V
}](w *world, table statedb.Table[Row], m bpf.Map[K, V], rows ...Row) {
	insert(w, table, rows...)
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

// Classes of the world.
const (
	subjectWeb  = 1
	subjectNone = 0
	peerWorld   = 10
	peerHost    = 11
	peerClient  = 12
	peerDB      = 13
	peerNode    = 14
)

var (
	policyWeb  = tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "shop", Name: "web"}}
	policyDeny = tables.PolicyID{Kind: tables.PolicyCilium, Name: tables.Name{Namespace: "shop", Name: "no-db"}}
)

// entry is a row of policy-entries about traffic that key says, with the rules that decide.
func entry(peer uint32, direction bpf.Direction, protocol uint8, port uint16, bits int, precedence uint32, deny uint8, rules ...*tables.EnforcedRule) *tables.PolicyEntry {
	e := &tables.PolicyEntry{Key: bpf.PolicyKeyOf(subjectWeb, peer, direction, protocol, port, bits), Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}}
	for _, r := range rules {
		e.Rules = append(e.Rules, r.RuleID)
	}
	e.Value = bpf.PolicyValue{Precedence: precedence, Deny: deny, Cookie: tables.CookieOf(e.Rules)}
	return e
}

func (w *world) rule(policy tables.PolicyID, direction bpf.Direction, item int, field string, defaultDeny, deny bool) *tables.EnforcedRule {
	r := &tables.EnforcedRule{
		RuleID: tables.RuleID{Policy: policy, Direction: direction, Item: int32(item)}, Field: field, DefaultDeny: defaultDeny, Deny: deny,
	}
	row := &tables.EnforcedPolicy{Policy: policy, Rules: []*tables.EnforcedRule{r}}
	if former, _, found := w.Rules.Get(w.DB.ReadTxn(), tables.EnforcedPolicyByID(policy)); found {
		row.Rules = append(slices.Clone(former.Rules), r)
		slices.SortFunc(row.Rules, func(a, b *tables.EnforcedRule) int { return a.Compare(b.RuleID) })
	}
	insert(w, w.Rules, row)
	insert(w, w.Cookies, &tables.RuleCookie{Cookie: tables.CookieOf([]tables.RuleID{r.RuleID}), Rules: []tables.RuleID{r.RuleID}, Fields: []string{field}})
	return r
}

// fill makes a cluster: shop/web is chosen by policies for ingress, from clients
// on 80/tcp and 8000-8007/tcp, from nobody else, and from databases never.
func (w *world) fill() {
	ports := []tables.NamedPort{{Name: "http", Protocol: 6, Port: 80}}
	pod := func(id, node string, labels map[string]string, addrs ...netip.Addr) {
		set := tables.NewLabelSet(name(id).Namespace, "", labels, ports)
		insert(w, w.Endpoints, &tables.Endpoint{Name: name(id), Node: node, Addrs: addrs, LabelSet: set})
	}
	pod("shop/web", "node-1", map[string]string{"app": "web"}, addr("10.1.0.5"), addr("fd00::5"))
	pod("shop/client", "node-1", map[string]string{"app": "client"}, addr("10.1.0.6"))
	pod("shop/db", "node-2", map[string]string{"app": "db"}, addr("10.2.0.5"))
	pod("other/web", "node-2", map[string]string{"app": "web"}, addr("10.2.0.6"))
	insert(w, w.Endpoints, &tables.Endpoint{Name: name("shop/pending"), Node: "node-1", LabelSet: &tables.LabelSet{}})
	insert(w, w.Nodes,
		&tables.Node{Name: "node-1", InternalIPs: []netip.Addr{addr("192.168.0.1")}, PodCIDRs: []netip.Prefix{prefix("10.1.0.0/24")}},
		&tables.Node{Name: "node-2", InternalIPs: []netip.Addr{addr("192.168.0.2")}, PodCIDRs: []netip.Prefix{prefix("10.2.0.0/24")}})
	insert(w, w.Services,
		&tables.Service{
			Name: name("shop/web"), Selector: map[string]string{"app": "web"}, Addrs: []netip.Addr{addr("10.96.0.10")},
			Ports: []tables.ServicePort{{Name: "https", Protocol: 6, Port: 443, TargetName: "http"}, {Name: "admin", Protocol: 6, Port: 80, TargetPort: 8007}},
		},
		&tables.Service{Name: name("shop/db"), Addrs: []netip.Addr{addr("10.96.0.11")}, Ports: []tables.ServicePort{{Protocol: 6, Port: 5432, TargetPort: 5432}}},
		&tables.Service{Name: name("shop/nobody"), Addrs: []netip.Addr{addr("10.96.0.12")}, Ports: []tables.ServicePort{{Protocol: 6, Port: 80, TargetPort: 80}}})
	insert(w, w.Backends,
		&tables.BackendSlice{
			Name: name("shop/db-abc"), Service: name("shop/db"), Addrs: []netip.Addr{addr("10.2.0.5"), addr("10.1.0.6")},
			Ports: []tables.BackendPort{{Protocol: 6, Port: 15432}},
		},
		&tables.BackendSlice{Name: name("shop/db-2-abc"), Service: name("shop/db-2"), Addrs: []netip.Addr{addr("10.9.9.9")}},
		&tables.BackendSlice{Name: name("default/kubernetes"), Service: tables.KubernetesAPIService, Addrs: []netip.Addr{addr("192.168.0.2")}})

	both(w, w.Configs, w.maps.Config, &tables.DatapathConfig{Underlay: addr("192.168.0.1"), Flags: bpf.ConfigAllowLocalhost})
	cached := func(p string, class uint32, flags bpf.IPCacheFlags) *tables.IPCache {
		return &tables.IPCache{Prefix: prefix(p), PeerClass: class, Flags: flags}
	}
	inside := bpf.IPCacheInCluster
	both(w, w.IPCache, w.maps.IPCache,
		cached("0.0.0.0/0", peerWorld, 0), cached("::/0", peerWorld, 0),
		cached("192.168.0.1/32", peerHost, inside|bpf.IPCacheHost|bpf.IPCacheNode), cached("192.168.0.2/32", peerNode, inside|bpf.IPCacheNode),
		cached("10.1.0.0/24", 0, inside), cached("10.1.0.5/32", 0, inside|bpf.IPCachePod), cached("fd00::5/128", 0, inside|bpf.IPCachePod),
		cached("10.1.0.6/32", peerClient, inside|bpf.IPCachePod), cached("10.2.0.5/32", peerDB, inside|bpf.IPCachePod),
		cached("10.96.0.10/32", 0, inside|bpf.IPCacheService), cached("10.96.0.11/32", 0, inside|bpf.IPCacheService),
		cached("10.96.0.12/32", 0, inside|bpf.IPCacheService), cached("169.254.0.0/16", peerWorld, bpf.IPCacheLocalScope))
	local := func(a, pod string, subject uint32, flags bpf.PodFlags) *tables.LocalEndpoint {
		return &tables.LocalEndpoint{Addr: addr(a), Endpoint: name(pod), IfIndex: 12, SubjectClass: subject, Flags: flags, Epoch: 1}
	}
	both(w, w.Locals, w.maps.Pods,
		local("10.1.0.5", "shop/web", subjectWeb, 0), local("fd00::5", "shop/web", subjectWeb, bpf.PodPolicyUnknown),
		local("10.1.0.6", "shop/client", subjectNone, bpf.PodEgressSelected))

	deny := w.rule(policyWeb, bpf.DirectionIngress, -1, "spec.ingress", true, false)
	http := w.rule(policyWeb, bpf.DirectionIngress, 0, "spec.ingress[0]", false, false)
	ranges := w.rule(policyWeb, bpf.DirectionIngress, 1, "spec.ingress[1]", false, false)
	db := w.rule(policyDeny, bpf.DirectionIngress, 0, "spec.ingressDeny[0]", false, true)
	both(w, w.Entries, w.maps.Policy,
		entry(0, bpf.DirectionEgress, 0, 0, 0, bpf.PrecedenceDefault, 0),
		entry(0, bpf.DirectionIngress, 0, 0, 0, bpf.PrecedenceDefault, 1, deny),
		entry(0, bpf.DirectionIngress, 1, 8, 16, bpf.PrecedenceAllow, 0, http),
		entry(peerClient, bpf.DirectionIngress, 6, 80, 16, bpf.PrecedenceAllow, 0, http),
		entry(peerClient, bpf.DirectionIngress, 6, 8000, 13, bpf.PrecedenceAllow, 0, ranges),
		entry(peerDB, bpf.DirectionIngress, 0, 0, 0, bpf.PrecedenceDeny, 1, db))
	w.fillEgress()
}

// fillEgress has shop/client leave by node-2 to one prefix, by this node to
// another, and by nobody to a third.
func (w *world) fillEgress() {
	both(w, w.Sources, w.maps.Sources, &tables.EgressSource{Addr: addr("10.1.0.6"), Class: 7, Endpoint: name("shop/client"), Node: "node-1"})
	insert(w, w.EgressClasses, &tables.EgressClass{Number: 7, Policies: []tables.PolicyChoice{{Policy: "bank"}, {Policy: "partner"}}})
	both(w, w.EgressRules, w.maps.Egress,
		&tables.EgressRule{Class: 7, Destination: prefix("198.51.100.0/24"), Group: 1, Policy: "bank", Overrides: []string{"partner"}},
		&tables.EgressRule{Class: 7, Destination: prefix("198.51.100.128/25"), Group: bpf.GroupExcluded, Policy: "bank"},
		&tables.EgressRule{Class: 7, Destination: prefix("203.0.113.0/24"), Group: 2, Policy: "partner"},
		&tables.EgressRule{Class: 7, Destination: prefix("192.0.2.0/24"), Group: 3, Policy: "partner"})
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
