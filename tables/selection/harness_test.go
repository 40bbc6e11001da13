// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/policy/policytest"
	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const here = "here" // the local node

// inputs are the tables that the cell reads; the test writes them.
type inputs struct {
	cell.In

	Namespaces      statedb.RWTable[*tables.Namespace]
	Nodes           statedb.RWTable[*tables.Node]
	CiliumNodes     statedb.RWTable[*tables.CiliumNode]
	Endpoints       statedb.RWTable[*tables.Endpoint]
	Addresses       statedb.RWTable[*tables.NodeAddress]
	Routes          statedb.RWTable[*tables.Route]
	EgressPolicies  statedb.RWTable[*tables.EgressPolicy]
	NetworkPolicies statedb.RWTable[*tables.NetworkPolicy]
	CIDRGroups      statedb.RWTable[*tables.CIDRGroup]
	Services        statedb.RWTable[*tables.Service]
	Backends        statedb.RWTable[*tables.BackendSlice]
	Groups          statedb.RWTable[*tables.EgressGroup]
	Rules           statedb.RWTable[*tables.EnforcedPolicy]
	IPCache         statedb.RWTable[*tables.IPCache]
	Locals          statedb.RWTable[*tables.LocalEndpoint]
	ClassEntries    statedb.RWTable[*tables.ClassEntry]
	SourceEntries   statedb.RWTable[*tables.SourceEntry]
	EgressEntries   statedb.RWTable[*tables.EgressEntry]
	IPCacheEntries  statedb.RWTable[*tables.IPCacheEntry]
	PodEntries      statedb.RWTable[*tables.PodEntry]
	PolicyEntries   statedb.RWTable[*tables.PolicyMapEntry]
}

type harness struct {
	t  *testing.T
	db *statedb.DB
	inputs
	base    policytest.Tables
	options policytest.Options

	selectors statedb.Table[*tables.Selector]
	prefixes  statedb.Table[*tables.PeerPrefix]
	members   statedb.Table[*tables.ClassMember]
	classes   statedb.Table[*tables.Class]
	places    tables.PeerPlaces
	work      *derive.Metrics
}

func input[Row any](create func(*statedb.DB) (statedb.RWTable[Row], error)) cell.Cell {
	return cell.Provide(create, statedb.RWTable[Row].ToTable)
}

// newHarness starts the cell after prepare has written what there is at the start.
func newHarness(t *testing.T, prepare func(*harness), flags ...string) *harness {
	h := &harness{t: t, work: derive.NewMetrics()}
	hv := hive.NewWithOptions(hive.Options{ModulePrivateProviders: cell.ModulePrivateProviders{job.Registry.NewGroup}},
		statedb.Cell, job.Cell, cell.SimpleHealthCell,
		input(tables.NewNamespaceTable), input(tables.NewNodeTable), input(tables.NewCiliumNodeTable), cell.Provide(tables.NewEndpointTable, statedb.RWTable[*tables.Endpoint].ToTable),
		input(tables.NewNodeAddressTable), input(tables.NewRouteTable), input(tables.NewEgressPolicyTable), input(tables.NewNetworkPolicyTable),
		input(tables.NewCIDRGroupTable), input(tables.NewServiceTable), input(tables.NewBackendSliceTable), input(tables.NewEgressGroupTable),
		input(tables.NewEnforcedPolicyTable), input(tables.NewIPCacheTable), input(tables.NewLocalEndpointTable), input(tables.NewClassEntryTable),
		input(tables.NewSourceEntryTable), input(tables.NewEgressEntryTable), input(tables.NewIPCacheEntryTable), input(tables.NewPodEntryTable),
		input(tables.NewPolicyMapEntryTable), input(tables.NewPolicyReadinessTable),
		cell.Provide(
			func() *derive.Metrics { return h.work },
			func() tables.LocalNode { return tables.LocalNode{Name: here} },
			func() tables.ClusterPrefixes { return tables.ClusterPrefixes{netip.MustParsePrefix("10.0.0.0/8")} },
		),
		Cell,
		cell.Invoke(func(db *statedb.DB, in inputs, base policytest.Tables, s statedb.Table[*tables.Selector], p statedb.Table[*tables.PeerPrefix],
			m statedb.Table[*tables.ClassMember], c statedb.Table[*tables.Class], places tables.PeerPlaces) {
			h.db, h.inputs, h.base, h.selectors, h.prefixes, h.members, h.classes, h.places = db, in, base, s, p, m, c, places
		}))
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	hv.RegisterFlags(set)
	require.NoError(t, set.Parse(flags))
	h.options = policytest.Options{Enforcement: set.Lookup("enforcement").Value.String(), ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	match := set.Lookup("policy-cidr-match").Value.String()
	h.options.CIDRPods, h.options.CIDRNodes = strings.Contains(match, "pods"), strings.Contains(match, "nodes")

	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	require.NoError(t, hv.Populate(log))
	prepare(h)
	require.NoError(t, hv.Start(log, context.Background()))
	t.Cleanup(func() { require.NoError(t, hv.Stop(log, context.Background())) })
	return h
}

// put writes rows into a table, one commit for all.
func put[Row any](h *harness, table statedb.RWTable[Row], rows ...Row) {
	wtxn := h.db.WriteTxn(table)
	for _, row := range rows {
		_, _, err := table.Insert(wtxn, row)
		require.NoError(h.t, err)
	}
	wtxn.Commit()
}

func remove[Row any](h *harness, table statedb.RWTable[Row], rows ...Row) {
	wtxn := h.db.WriteTxn(table)
	for _, row := range rows {
		_, _, err := table.Delete(wtxn, row)
		require.NoError(h.t, err)
	}
	wtxn.Commit()
}

// await returns when what is asked of a snapshot is no more wrong.
func (h *harness) await(wrong func(txn statedb.ReadTxn) string) {
	h.t.Helper()
	deadline := time.After(await.Bound)
	for {
		txn := h.db.ReadTxn()
		_, a := h.selectors.AllWatch(txn)
		_, b := h.prefixes.AllWatch(txn)
		_, c := h.members.AllWatch(txn)
		_, d := h.classes.AllWatch(txn)
		problem := wrong(txn)
		if problem == "" {
			return
		}
		select {
		case <-a:
		case <-b:
		case <-c:
		case <-d:
		case <-deadline:

			require.Fail(h.t, "not reached: "+problem)
		}
	}
}

// marker has an event that changes something here taken in, a new node, and with
// it all events before.
func (h *harness) marker(n byte) {
	h.t.Helper()
	addr := netip.AddrFrom4([4]byte{192, 0, 2, 100 + n})
	put(h, h.Nodes, &tables.Node{Name: fmt.Sprint("marker-", n), InternalIPs: []netip.Addr{addr}})
	h.await(func(txn statedb.ReadTxn) string {
		if m := h.places.Member(txn, single(addr)); m == nil || m.Node == "" {
			return "no member of the marker"
		}
		return ""
	})
}

func pod(name, node, addr string, set labels.Set, ports ...tables.NamedPort) *tables.Endpoint {
	namespace, base, _ := strings.Cut(name, "/")
	return &tables.Endpoint{
		Name: tables.Name{Namespace: namespace, Name: base}, Node: node,
		Addrs: []netip.Addr{netip.MustParseAddr(addr)}, LabelSet: tables.NewLabelSet(namespace, "", set, ports),
	}
}

// policy makes a policy of a subject and peers from which it allows traffic.
func policy(name, subject string, peers ...tables.PolicyPeer) *tables.NetworkPolicy {
	return &tables.NetworkPolicy{
		Kind: tables.PolicyCilium, Name: tables.Name{Namespace: "a", Name: name},
		Rules: []tables.PolicyRule{{
			Field: "spec", Subject: tables.EgressSelector{Pods: subject},
			Ingress: tables.PolicyDirection{DefaultDeny: true, Traffic: []tables.PolicyTraffic{{Field: "spec.ingress[0]", Peers: peers}}},
		}},
	}
}

func pods(selector string) tables.PolicyPeer {
	return tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: selector}}
}

func cidr(prefix string, matchesPods bool, except ...string) tables.PolicyPeer {
	p := tables.PolicyPeer{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{CIDR: netip.MustParsePrefix(prefix), MatchesPods: matchesPods}}
	for _, e := range except {
		p.Except = append(p.Except, netip.MustParsePrefix(e))
	}
	return p
}

func entity(e tables.PolicyEntity) tables.PolicyPeer {
	return tables.PolicyPeer{Kind: tables.PeerEntity, Entity: e}
}

// enforced has the rules of a policy in force.
func enforced(p *tables.NetworkPolicy) *tables.EnforcedPolicy {
	row := &tables.EnforcedPolicy{Policy: p.ID()}
	for i, r := range p.Rules {
		for j, t := range r.Ingress.Traffic {
			rule := &tables.EnforcedRule{
				RuleID:  tables.RuleID{Policy: p.ID(), Rule: int32(i), Direction: bpf.DirectionIngress, Item: int32(j)},
				Subject: tables.SubjectSelectorID(r.Subject), Ports: t.Ports,
			}
			for _, peer := range t.Peers {
				rule.Peers = append(rule.Peers, tables.PeerSelectorID(peer))
			}
			slices.Sort(rule.Peers)
			row.Rules = append(row.Rules, rule)
		}
	}
	return row
}

// signature describes what chooses a member as policytest does, as far as
// policies that are wanted name it.
func (h *harness) signature(txn statedb.ReadTxn, m *tables.ClassMember) string {
	var parts []string
	for _, id := range m.Selectors {
		s, _, found := h.selectors.Get(txn, tables.SelectorByID(id))
		if !found {
			parts = append(parts, "unknown "+id.String())
			continue
		}
		wanted := h.isWanted(txn, id)
		base := s.Peer.Kind == tables.PeerEntity && slices.Contains(entities, s.Peer.Entity)
		if wanted || base {
			parts = append(parts, s.Text)
		}
	}
	if m.Role == bpf.RoleSubject && len(parts) == 0 {
		return "" // no policy chooses it any more
	}
	for _, p := range m.Ports {
		if h.isWanted(txn, tables.PortSelectorID(m.Role, p.Name, p.Protocol)) {
			parts = append(parts, tables.PolicyPort{Protocol: p.Protocol, First: p.Port, Last: p.Port}.String()+" is "+p.Name)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}

// isWanted reports whether a policy names a selector.
func (h *harness) isWanted(txn statedb.ReadTxn, id tables.SelectorID) bool {
	for p := range h.NetworkPolicies.All(txn) {
		if slices.Contains(p.SelectorIDs(), id) {
			return true
		}
	}
	return false
}

// wrong compares what chooses each address with what a naive evaluation says,
// and the rows of classes with their members.
func (h *harness) wrong(addrs []netip.Addr) func(txn statedb.ReadTxn) string {
	return func(txn statedb.ReadTxn) string {
		world := h.base.World(txn, h.options)
		for _, addr := range addrs {
			m := h.places.Member(txn, single(addr))
			if m == nil {
				return "no peer at " + addr.String()
			}
			if got, want := h.signature(txn, m), world.PeerSignature(addr); got != want {
				return fmt.Sprintf("peer %s is chosen by %q instead of %q", addr, got, want)
			}
			owner, _ := tables.AddrOwner(txn, h.Endpoints, addr)
			if owner == nil || owner.Node != here {
				continue
			}
			m = tables.MemberOf(txn, h.members, bpf.RoleSubject, owner)
			if m == nil {
				return "no subject at " + addr.String()
			}
			if got, want := h.signature(txn, m), world.SubjectSignature(addr); got != want {
				return fmt.Sprintf("subject %s is chosen by %q instead of %q", addr, got, want)
			}
		}
		return h.inconsistent(txn)
	}
}

// inconsistent compares the rows of classes with their members.
func (h *harness) inconsistent(txn statedb.ReadTxn) string {
	peopled := map[bpf.ClassKey]bool{}
	for m := range h.members.All(txn) {
		if m.Evaluated != 0 || m.OfClass || m.Role == bpf.RoleEgress || m.Class == 0 {
			continue
		}
		key := bpf.ClassKey{Role: m.Role, Number: m.Class}
		peopled[key] = true
		row := tables.ClassRow(txn, h.members, key)
		switch {
		case row == nil:
			return "no row of class " + key.String()
		case row.Digest != m.Digest || !slices.Equal(row.Selectors, m.Selectors) || !slices.Equal(row.Ports, m.Ports):
			return fmt.Sprintf("class %s stands for %q, not for its member %v with %q", key, h.signature(txn, row), m.TableRow(), h.signature(txn, m))
		}
	}
	for role := range h.members.List(txn, tables.ClassRowsOfRole(bpf.RolePeer)) {
		key := bpf.ClassKey{Role: role.Role, Number: role.Class}
		if !peopled[key] && len(role.Leavers) == 0 && !h.used(txn, role.Class) {
			return "a row of class " + key.String() + " that nobody is in"
		}
	}
	return ""
}

// used reports whether the kernel or the desired table has someone in a peer class.
func (h *harness) used(txn statedb.ReadTxn, class uint32) bool {
	for e := range h.IPCacheEntries.All(txn) {
		if e.Value.PeerClass == class {
			return true
		}
	}
	for c := range h.IPCache.All(txn) {
		if c.PeerClass == class {
			return true
		}
	}
	return false
}

func (h *harness) params() memberParams {
	return memberParams{IPCache: h.IPCache, IPCacheEntries: h.IPCacheEntries, Places: h.places}
}

// counts returns how many keys and rows of a table were computed and written.
func (h *harness) counts(table string) derive.Counts {
	for _, s := range h.work.All() {
		if s.Table() == table {
			return s.Counts()
		}
	}
	require.Fail(h.t, "no table "+table)
	return derive.Counts{}
}

// isLeaver reports whether a prefix is leaving the class of a row.
func isLeaver(row *tables.ClassMember, prefix netip.Prefix) bool {
	_, found := slices.BinarySearchFunc(row.Leavers, prefix, func(l tables.Leaver, p netip.Prefix) int { return l.Prefix.Compare(p) })
	return found
}
