// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy/policytest"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const here = "here" // the local node

// inputs are the tables that the rule reads; the test writes them.
type inputs struct {
	Endpoints     tablestest.Table[*tables.Endpoint]
	Nodes         tablestest.Table[*tables.Node]
	CiliumNodes   tablestest.Table[*tables.CiliumNode]
	Services      tablestest.Table[*tables.Service]
	Backends      tablestest.Table[*tables.BackendSlice]
	Addresses     tablestest.Table[*tables.NodeAddress]
	Routes        tablestest.Table[*tables.Route]
	Namespaces    tablestest.Table[*tables.Namespace]
	Groups        tablestest.Table[*tables.CIDRGroup]
	Policies      tablestest.Table[*tables.NetworkPolicy]
	Egress        tablestest.Table[*tables.EgressPolicy] // for a naive evaluation; none
	Selectors     tablestest.Table[*tables.Selector]
	Rulesets      tablestest.Table[*tables.Ruleset]
	IPCacheMirror tablestest.Table[*tables.IPCacheMirror]
	PeerMirror    tablestest.Table[*tables.PeerMirror]
}

type harness struct {
	testing.TB
	db *statedb.DB
	inputs
	ruleTables
	rule    *rule
	stepper *tablestest.Rule[key]
	last    uint32 // number of a selector or ruleset
	seen    seen

	// Nodes and namespaces that have changed since the rule was up to date: what it says of
	// them may be new or old.
	changed map[string]bool
}

var clusterCIDR = netip.MustParsePrefix("10.0.0.0/12")

func newHarness(t testing.TB) *harness { return newHarnessWith(t, shareOf(bpf.DefaultConfig)) }

// newHarnessWith is for namespaces with a share of classes.
func newHarnessWith(t testing.TB, share Share) *harness {
	db := statedb.New()
	h := &harness{TB: t, db: db, seen: newSeen(), changed: map[string]bool{}}
	i := &h.inputs
	i.Endpoints = tablestest.OpenEndpoints(t, db, here)
	i.Nodes = tablestest.Open(t, db, tables.NewNodeTable)
	i.CiliumNodes = tablestest.Open(t, db, tables.NewCiliumNodeTable)
	i.Services = tablestest.Open(t, db, tables.NewServiceTable)
	i.Backends = tablestest.Open(t, db, tables.NewBackendSliceTable)
	i.Addresses = tablestest.Open(t, db, tables.NewNodeAddressTable)
	i.Routes = tablestest.Open(t, db, tables.NewRouteTable)
	i.Namespaces = tablestest.Open(t, db, tables.NewNamespaceTable)
	i.Groups = tablestest.Open(t, db, tables.NewCIDRGroupTable)
	i.Policies = tablestest.Open(t, db, tables.NewNetworkPolicyTable)
	i.Egress = tablestest.Open(t, db, tables.NewEgressPolicyTable)
	i.Selectors = tablestest.Open(t, db, tables.NewSelectorTable)
	i.Rulesets = tablestest.Open(t, db, tables.NewRulesetTable)
	i.IPCacheMirror = tablestest.Open(t, db, tables.NewIPCacheMirrorTable)
	i.PeerMirror = tablestest.Open(t, db, tables.NewPeerMirrorTable)
	h.ruleTables = ruleTables{
		IPCache:      tablestest.Open(t, db, tables.NewIPCacheTable),
		PeerPrefixes: tablestest.Open(t, db, tables.NewPeerPrefixTable),
		Members:      tablestest.Open(t, db, tables.NewMemberTable),
		Classes:      tablestest.Open(t, db, tables.NewClassTable),
		Matches:      tablestest.Open(t, db, tables.NewSelectorMatchTable),
		Endpoints:    i.Endpoints, Nodes: i.Nodes, CiliumNodes: i.CiliumNodes,
		Services: i.Services, Backends: i.Backends, Addresses: i.Addresses, Routes: i.Routes,
		Namespaces: i.Namespaces, Cluster: tables.ClusterPrefixes{clusterCIDR},
		LocalNode: tables.LocalNode{Name: here}, Agents: "agents", Selectors: i.Selectors, Rulesets: i.Rulesets,
		IPCacheMirror: i.IPCacheMirror, PeerMirror: i.PeerMirror, Share: share,
		Room: roomOf(bpf.DefaultConfig),
	}
	h.rule = &rule{ruleTables: h.ruleTables, maxWork: maxWork}
	h.stepper = tablestest.NewRule(t, db, h.rule.declare())
	return h
}

// step runs one transaction, checks what it has done, and reports whether there is more.
func (h *harness) step() bool {
	h.Helper()
	before := h.db.ReadTxn()
	more := h.stepper.Step()
	h.checkStep(before, h.db.ReadTxn())
	return more
}

func (h *harness) settle() {
	h.Helper()
	for h.step() {
	}
	clear(h.changed)
}

func addr(text string) netip.Addr     { return netip.MustParseAddr(text) }
func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func pod(name, node, addrs string, set labels.Set, ports ...tables.NamedPort) *tables.Endpoint {
	namespace, base, _ := strings.Cut(name, "/")
	e := &tables.Endpoint{
		Name: tables.Name{Namespace: namespace, Name: base}, Node: node,
		LabelSet: tables.NewLabelSet(namespace, "", set, ports),
	}
	for a := range strings.SplitSeq(addrs, ",") {
		e.Addrs = append(e.Addrs, addr(a))
	}
	return e
}

func pods(selector string) tables.PolicyPeer {
	return tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: selector}}
}

// podsOf are the pods of some namespaces.
func podsOf(namespaces string) tables.PolicyPeer {
	return tables.PolicyPeer{
		Kind: tables.PeerPods,
		Pods: tables.EgressSelector{Namespaces: namespaces},
	}
}

func cidr(block string, matchesPods bool, except ...string) tables.PolicyPeer {
	p := tables.PolicyPeer{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{
		CIDR: prefix(block), MatchesPods: matchesPods,
	}}
	for _, e := range except {
		p.Except = append(p.Except, prefix(e))
	}
	return p
}

func entity(e tables.PolicyEntity) tables.PolicyPeer {
	return tables.PolicyPeer{Kind: tables.PeerEntity, Entity: e}
}

// use brings the selectors of the peers of a cluster-wide rule into use, and returns them.
func (h *harness) use(peers ...tables.PolicyPeer) (selectors []*tables.Selector) {
	return h.useIn("", peers...)
}

// useIn is use for a rule of a namespace.
func (h *harness) useIn(
	namespace string, peers ...tables.PolicyPeer,
) (selectors []*tables.Selector) {
	for _, spec := range tables.SelectorSpecs(peers) {
		spec.Foreign = spec.IsForeign(namespace, false,
			func(s tables.EgressSelector) *tables.PodMatcher {
				m, err := tables.NewPodMatcher(s)
				require.NoError(h, err)
				return m
			})
		s, _, found := h.inputs.Selectors.Get(h.db.ReadTxn(), tables.SelectorByDigest(spec.Digest()))
		if !found {
			h.last++
			s = h.resolve(tables.Selector{SelectorSpec: spec, Life: tables.Life{Number: h.last}})
			h.inputs.Selectors.Put(s)
		}
		selectors = append(selectors, s)
	}
	return selectors
}

func ordered(prefixes []netip.Prefix) []netip.Prefix {
	return slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare)
}

// resolve fills in what a selector comes to.
func (h *harness) resolve(of tables.Selector) *tables.Selector {
	s := tables.Selector{Life: of.Life, SelectorSpec: of.SelectorSpec}
	txn := h.db.ReadTxn()
	backends := func(service tables.Name) {
		for b := range h.inputs.Backends.List(txn, tables.BackendSlicesByService(service)) {
			for _, a := range b.Addrs {
				s.Blocks = append(s.Blocks, tables.Block{Prefix: single(a)})
			}
		}
		s.MatchesPods, s.MatchesNodes = true, true
	}
	for _, p := range s.Peers {
		switch p.Kind {
		case tables.PeerPods:
			s.Pods = append(s.Pods, p.Pods)
		case tables.PeerEntity:
			if s.Entity = p.Entity; p.Entity == tables.EntityKubeAPIServer {
				backends(tables.KubernetesAPIService)
			}
		case tables.PeerCIDR:
			s.MatchesPods, s.MatchesNodes = p.MatchesPods, p.MatchesPods
			if p.CIDR.Bits() == 0 && len(p.Except) == 0 {
				s.Family = map[bool]uint8{true: bpf.FamilyIPv4, false: bpf.FamilyIPv6}[p.CIDR.Addr().Is4()]
			} else {
				s.Blocks = append(s.Blocks, tables.Block{Prefix: p.CIDR, Except: ordered(p.Except)})
			}
		case tables.PeerCIDRGroups:
			s.MatchesPods, s.MatchesNodes = p.MatchesPods, p.MatchesPods
			for g := range h.Groups.All(txn) {
				for _, prefix := range g.Prefixes {
					if g.Name == p.Group {
						s.Blocks = append(s.Blocks, tables.Block{Prefix: prefix, Except: ordered(p.Except)})
					}
				}
			}
		case tables.PeerServices:
			service, _, found := h.inputs.Services.Get(txn, tables.ServiceByName(p.Service))
			switch {
			case !found:
			case len(service.Selector) == 0:
				backends(service.Name)
			default:
				s.Pods = append(s.Pods, tables.EgressSelector{
					Namespaces: "kubernetes.io/metadata.name=" + service.Namespace,
					Pods:       labels.SelectorFromSet(service.Selector).String(),
				})
			}
		}
	}
	slices.SortStableFunc(s.Blocks, func(a, b tables.Block) int { return a.Prefix.Compare(b.Prefix) })
	parsed, err := tables.NewSelector(s)
	require.NoError(h, err)
	return parsed
}

// resolveAll has all selectors follow the objects that they name.
func (h *harness) resolveAll() {
	for s := range h.inputs.Selectors.All(h.db.ReadTxn()) {
		if now := h.resolve(*s); fmt.Sprint(now) != fmt.Sprint(s) {
			h.inputs.Selectors.Put(now)
		}
	}
}

// ruleset has a live ruleset whose egress rules name a port.
func (h *harness) ruleset(port string) *tables.Ruleset {
	h.last++
	r := &tables.Ruleset{
		Life: tables.Life{Number: h.last}, Digest: bpf.Digest{byte(h.last >> 8), byte(h.last)},
		Rules: []*tables.Rule{{AnyPeer: true, Ports: []tables.PolicyPort{{Name: port, Protocol: 6}}}},
	}
	h.inputs.Rulesets.Put(r)
	return r
}

// row returns what the longest prefix around an address is known as.
func (h *harness) row(a netip.Addr) (longest *tables.IPCache) {
	for row := range h.IPCache.All(h.db.ReadTxn()) {
		if row.Prefix.Contains(a) && (longest == nil || longest.Prefix.Bits() < row.Prefix.Bits()) {
			longest = row
		}
	}
	return longest
}

// class returns the class of an address.
func (h *harness) class(a netip.Addr) *tables.Class {
	h.Helper()
	row := h.row(a)
	require.NotNil(h, row, a)
	m, _, found := h.Members.Get(h.db.ReadTxn(), tables.MemberByNumber(row.Member))
	require.True(h, found)
	c, _, found := h.Classes.Get(h.db.ReadTxn(), tables.ClassByNumber(m.Class))
	require.True(h, found)
	return c
}

// says describes what selects an address, and its ports.
func (h *harness) says(a netip.Addr) []string {
	h.Helper()
	c := h.class(a)
	parts := []string{}
	for _, n := range c.Selectors {
		s, _, found := h.inputs.Selectors.Get(h.db.ReadTxn(), tables.SelectorByNumber(n))
		require.True(h, found, "selector %d", n)
		parts = append(parts, s.Text)
	}
	for _, p := range c.Ports {
		parts = append(parts, p.String())
	}
	slices.Sort(parts)
	return slices.Compact(parts)
}

// isEvaluated reports whether a selector is evaluated for all members.
func (h *harness) isEvaluated(s *tables.Selector) bool {
	match, _, _ := h.Matches.Get(h.db.ReadTxn(), tables.SelectorMatchByNumber(s.Number))
	return match.IsComplete()
}

// evaluated returns how many selectors are.
func (h *harness) evaluated() (n int) {
	for match := range h.Matches.All(h.db.ReadTxn()) {
		if match.IsComplete() {
			n++
		}
	}
	return n
}

func (h *harness) base() policytest.Tables {
	return policytest.Tables{
		DB: h.db, Namespaces: h.inputs.Namespaces, Nodes: h.inputs.Nodes, Cilium: h.inputs.CiliumNodes,
		Endpoints: h.inputs.Endpoints, Services: h.inputs.Services, Backends: h.inputs.Backends,
		Groups: h.Groups, Policies: h.Policies, Egress: h.Egress, Addresses: h.inputs.Addresses, Routes: h.inputs.Routes,
		LocalNode: tables.LocalNode{Name: here},
	}
}
