// SPDX-License-Identifier: Apache-2.0

package members

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type ruleTables struct {
	cell.In

	IPCache      statedb.RWTable[*tables.IPCache]
	PeerPrefixes statedb.RWTable[*tables.PeerPrefix]
	Members      statedb.RWTable[*tables.Member]
	Classes      statedb.RWTable[*tables.Class]
	Matches      statedb.RWTable[*tables.SelectorMatch]

	Endpoints   statedb.Table[*tables.Endpoint]
	Nodes       statedb.Table[*tables.Node]
	CiliumNodes statedb.Table[*tables.CiliumNode]
	Services    statedb.Table[*tables.Service]
	Backends    statedb.Table[*tables.BackendSlice]
	Addresses   statedb.Table[*tables.NodeAddress]
	Routes      statedb.Table[*tables.Route]
	Namespaces  statedb.Table[*tables.Namespace]
	Cluster     tables.ClusterPrefixes
	LocalNode   tables.LocalNode
	Agents      tables.AgentNamespace
	Share       Share
	Room        Room

	Selectors statedb.Table[*tables.Selector]
	Rulesets  statedb.Table[*tables.Ruleset]

	IPCacheMirror statedb.Table[*tables.IPCacheMirror]
	PeerMirror    statedb.Table[*tables.PeerMirror]
}

// key is a unit of work.
type key struct {
	kind   kind
	prefix netip.Prefix
	from   netip.Prefix // of ofInside and ofRefused: the first one left
	number uint32
	after  uint32 // of a selector or port: the last member or class looked at
	name   string // of a node or a port
}

type kind uint8

const (
	ofAddress    kind = iota // prefix: the row of ipcache
	ofPods                   // name of a node: its tunnel address changed, and so its pods'
	ofPeerPrefix             // prefix: selectors may have begun or ceased to name it
	ofInside                 // prefix: those inside it
	ofMember                 // number: its class, and its removal
	ofRelabeled              // number: the same, as the labels of its namespace or node change
	ofRefused                // the refused addresses, when there may be room for them
	ofClass                  // number: its removal
	ofMembers                // number: the members of a selector that selects other pods
	ofPort                   // name, in the form http/tcp: rulesets begin or cease to use it
	ofSelector               // number: it is evaluated after all keys before it are computed
)

func addressKey(prefix netip.Prefix) key { return key{kind: ofAddress, prefix: prefix} }

func prefixKey(prefix netip.Prefix) key { return key{kind: ofPeerPrefix, prefix: prefix} }

func insideKey(prefix, from netip.Prefix) key {
	return key{kind: ofInside, prefix: prefix, from: from}
}

func refusedKey(from netip.Prefix) key { return key{kind: ofRefused, from: from} }

func memberKey(number uint32) key   { return key{kind: ofMember, number: number} }
func classKey(number uint32) key    { return key{kind: ofClass, number: number} }
func selectorKey(number uint32) key { return key{kind: ofSelector, number: number} }

// single returns the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// rule has the tables, and the last numbers that it assigned.
type rule struct {
	ruleTables
	number  uint32 // of a member or class
	made    uint64 // of a transaction, which may have two: one for each queue
	maxWork int
}

// maxWork is how many members, addresses and selectors one transaction looks at, plus those for the
// last key.
const maxWork = 8000

// world has the prefixes that contain all others.
var world = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// localScope are destinations that stay on the link or the node, whatever policies say: link-local
// addresses with the metadata service and node-local DNS, multicast, broadcast and loopback.
var localScope = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

func newRule(all ruleTables) derive.Rule[key] {
	r := &rule{ruleTables: all, maxWork: maxWork}
	return r.declare()
}

func (r *rule) declare() derive.Rule[key] {
	var seed []key
	for _, p := range slices.Concat(world, r.Cluster) {
		seed = append(seed, prefixKey(p))
	}
	for _, p := range localScope {
		seed = append(seed, addressKey(p))
	}
	return derive.Rule[key]{
		Name:    "members",
		Outputs: []statedb.TableMeta{r.IPCache, r.PeerPrefixes, r.Members, r.Classes, r.Matches},
		Inputs:  r.inputs(),
		Seed:    seed,
		Last:    func(k key) bool { return k.kind == ofSelector },
		// They come after all addresses that were marked before, which may wait as many.
		Large:   func(k key) bool { return k.kind == ofRelabeled },
		Compute: r.compute,
	}
}

func (r *rule) compute(in statedb.ReadTxn, out statedb.WriteTxn, keys []key, mark func(key)) error {
	r.made++
	t := &transaction{
		rule: r, in: in, out: out, mark: mark, later: map[uint32]bool{}, moved: map[string]bool{},
		classes: map[string]map[tables.Precision]int{}, marked: map[uint32]bool{},
		freed: map[string]bool{},
	}
	for _, k := range keys {
		if t.isFull() && t.defers(k) {
			continue
		}
		switch k.kind {
		case ofAddress:
			t.address(k.prefix)
		case ofPods:
			t.moved[k.name] = true
		case ofPeerPrefix:
			t.peerPrefix(k.prefix)
		case ofInside:
			t.inside(k.prefix, k.from)
		case ofMember, ofRelabeled:
			t.member(k.number)
		case ofRefused:
			t.refusedAddresses(k.from)
		case ofClass:
			t.class(k.number)
		case ofSelector:
			t.selector(k)
		case ofMembers:
			t.members(k)
		case ofPort:
			t.port(k)
		}
	}
	for _, e := range t.evaluations {
		t.evaluate(e)
	}
	t.markPods()
	t.markImprecise()
	for _, n := range slices.Sorted(maps.Keys(t.later)) {
		mark(selectorKey(n))
	}
	return t.err
}

// transaction is one call of compute.
type transaction struct {
	*rule
	in          statedb.ReadTxn
	out         statedb.WriteTxn
	mark        func(key)
	later       map[uint32]bool // selectors to evaluate after all keys that the call marks
	moved       map[string]bool // nodes whose tunnel address changed
	evaluations []*evaluation
	work        int   // members, addresses and selectors looked at
	err         error // the first one

	classes map[string]map[tables.Precision]int // desired, of namespaces looked at
	marked  map[uint32]bool                     // classes whose members are marked
	freed   map[string]bool                     // namespaces with a class less
	ended   bool                                // a selector has

	labelSets *labelSets // nil until they are counted
}

func (t *transaction) isFull() bool { return t.work >= t.maxWork }

// defers marks a key again if it may be computed after others.
func (t *transaction) defers(k key) bool {
	switch k.kind {
	case ofAddress, ofInside:
		t.expectSelectors(t.around(k.prefix))
	case ofMember, ofRelabeled, ofSelector, ofMembers, ofPort, ofRefused:
	default:
		return false
	}
	t.mark(k)
	return true
}

// insert and remove write a row of an output.
func insert[Row any](t *transaction, table statedb.RWTable[Row], row Row) {
	if err := derive.Insert(t.out, table, row); err != nil && t.err == nil {
		t.err = err
	}
}

func remove[Row any](t *transaction, table statedb.RWTable[Row], row Row) {
	if err := derive.Delete(t.out, table, row); err != nil && t.err == nil {
		t.err = err
	}
}

// markPods marks the addresses of pods of nodes whose tunnel address changed. One call scans all
// pods once: such changes are rare, and an index of pods by node is large.
func (t *transaction) markPods() {
	if len(t.moved) == 0 {
		return
	}
	for e := range t.Endpoints.All(t.in) {
		if t.moved[e.Node] {
			for _, a := range e.Addrs {
				t.mark(addressKey(single(a)))
			}
		}
	}
}
