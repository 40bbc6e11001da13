// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/testdata/await"
)

type counts = map[string]int // by table

// counter counts the rows of outputs that are written.
type counter struct {
	*harness
	outputs map[string]func(statedb.ReadTxn) int
}

func watch[Row any](h *harness, table statedb.RWTable[Row]) func(statedb.ReadTxn) int {
	wtxn := h.db.WriteTxn(table)
	iterator, err := table.Changes(wtxn)
	require.NoError(h, err)
	wtxn.Commit()
	return func(txn statedb.ReadTxn) (n int) {
		changes, _ := iterator.Next(txn)
		for range changes {
			n++
		}
		return n
	}
}

func newCounter(h *harness) *counter {
	c := &counter{h, map[string]func(statedb.ReadTxn) int{
		"ipcache": watch(h, h.IPCache), "prefixes": watch(h, h.PeerPrefixes),
		"members": watch(h, h.Members), "classes": watch(h, h.Classes),
		"matches": watch(h, h.Matches),
	}}
	c.written()
	return c
}

// written returns how many rows were written since the last time, where any were.
func (c *counter) written() counts {
	c.settle()
	written := counts{}
	for name, count := range c.outputs {
		if n := count(c.db.ReadTxn()); n > 0 {
			written[name] = n
		}
	}
	return written
}

// Work is in proportion to what changes.
func TestWrites(t *testing.T) {
	h := newHarness(t)
	h.inputs.Namespaces.Put(&tables.Namespace{Name: "a"})
	h.use(pods("app=web"), cidr("10.8.0.0/16", true, "10.8.1.0/24"))
	for i := range 30 {
		h.inputs.Endpoints.Put(pod(fmt.Sprint("a/pod", i), "there", fmt.Sprintf("10.1.0.%d", i),
			labels.Set{"app": "web", "n": fmt.Sprint(i % 10)}))
	}
	c := newCounter(h)
	kernel := newKernel(h, nil)

	h.inputs.Endpoints.Put(pod("a/new", "there", "10.1.1.1", labels.Set{"app": "web", "n": "3"}))
	require.Equal(t, counts{"ipcache": 1}, c.written(), "a pod with known labels")
	h.inputs.Endpoints.Put(pod("a/other", "there", "10.1.1.2", labels.Set{"app": "web", "n": "11"}))
	require.Equal(t, counts{"ipcache": 1, "members": 1}, c.written(), "a pod with new labels")
	h.inputs.Endpoints.Remove(pod("a/new", "there", "10.1.1.1", labels.Set{}))
	require.Equal(t, counts{"ipcache": 1}, c.written(), "a pod that goes")

	h.inputs.Namespaces.Put(&tables.Namespace{Name: "a", Labels: labels.Set{"team": "red"}})
	require.Empty(t, c.written(), "a namespace with labels that no selector looks at")
	h.use(podsOf("team=red"))
	kernel.everything(h.db.ReadTxn())
	require.Equal(t, counts{"members": 11, "classes": 2, "matches": 1}, c.written(),
		"a new selector of 11 label sets")
	h.inputs.Namespaces.Put(&tables.Namespace{Name: "a", Labels: labels.Set{"team": "blue"}})
	require.Equal(t, counts{"members": 11, "classes": 2}, c.written(), "a namespace that is relabeled")

	h.use(pods("app=none"))
	require.Equal(t, counts{"matches": 1}, c.written(), "a selector that selects nothing")
	h.use(cidr("0.0.0.0/0", false))
	require.Equal(t, counts{"members": 1, "classes": 1, "matches": 1}, c.written(),
		"what is outside the cluster, of IPv4")
	h.use(cidr("0.0.0.0/0", true))
	require.Equal(t, 1, c.written()["matches"])
	h.use(cidr("198.51.100.0/24", false, "198.51.100.7/32"))
	require.Equal(t, counts{"ipcache": 2, "prefixes": 2, "members": 1, "classes": 1, "matches": 1},
		c.written(), "a block with an exception")
	h.use(cidr("198.51.100.0/28", false))
	require.Equal(t, counts{"ipcache": 2, "prefixes": 2, "members": 2, "classes": 2, "matches": 1},
		c.written(), "a block in it, around the exception")
	h.use(cidr("10.1.0.0/28", true))
	require.Equal(t,
		counts{"ipcache": 17, "prefixes": 1, "members": 11, "classes": 2, "matches": 1},
		c.written(), "a block with 16 pods of 10 label sets")
}

// A small change does not wait for a selector of many prefixes, which does not overtake it.
func TestManyPrefixes(t *testing.T) {
	const many = 16000
	h := newHarness(t)
	h.inputs.Endpoints.Put(pod("a/inside", "there", "10.1.2.3", labels.Set{"app": "web"}))
	h.settle()
	var peers []tables.PolicyPeer
	for i := range many {
		peers = append(peers, cidr(fmt.Sprintf("10.%d.%d.%d/32", i/65536, i/256%256, i%256), true))
	}
	peers = append(peers, cidr("10.1.0.0/16", true, "10.1.3.0/24"))
	list := h.use(peers...)[0]
	steps := func(until func() bool) (n int) {
		for !until() {
			h.stepper.Step()
			n++
		}
		return n
	}
	require.Equal(t, 1, steps(func() bool { return h.PeerPrefixes.NumObjects(h.db.ReadTxn()) > 500 }))

	h.inputs.Endpoints.Put(pod("a/new", "there", "10.1.9.9", labels.Set{"app": "new"}))
	isPod := func() bool { return h.row(addr("10.1.9.9")).Flags&bpf.IPCachePod != 0 }
	require.LessOrEqual(t, steps(isPod), 1)
	small := h.use(pods("app=new"), cidr("10.1.9.0/24", true))
	both := func() bool { return h.isEvaluated(small[0]) && h.isEvaluated(small[1]) }
	require.LessOrEqual(t, steps(both), 3)
	require.Contains(t, h.class(addr("10.1.9.9")).Selectors, small[0].Number)
	require.Contains(t, h.class(addr("10.1.9.9")).Selectors, small[1].Number)

	require.False(t, h.isEvaluated(list))
	n := steps(func() bool { return h.isEvaluated(list) })
	require.Greater(t, n, many/1000-5)
	require.Less(t, n, many/1000+10)
	for a, is := range map[string]bool{
		"10.1.2.3": true, "10.1.9.9": true, "10.0.0.9": true, "10.1.3.1": false, "10.3.0.1": false,
	} {
		require.Equal(t, is, h.class(addr(a)).Selects(list.Number), a)
	}

	// The list loses one prefix, and the rest is not looked at.
	s := *list
	s.Peers, s.Text = s.Peers[1:], s.Text[1:]
	c := newCounter(h)
	h.inputs.Selectors.Put(h.resolve(s))
	written := c.written()
	require.Equal(t, 1, written["prefixes"])
	require.Equal(t, 1, written["ipcache"])
}

// What is not desired any more keeps what it was while the kernel may have it, and learns
// of selectors that come into use. It ends when the kernel does not refer to it.
func TestUndesiredMember(t *testing.T) {
	h := newHarness(t)
	k := newKernel(h, nil)
	red := h.use(podsOf("team=red"))[0]
	h.inputs.Namespaces.Put(&tables.Namespace{Name: "a", Labels: labels.Set{"team": "red"}})
	e := pod("a/web", here, "10.1.0.1", labels.Set{"app": "web"})
	h.inputs.Endpoints.Put(e)
	h.settle()
	k.everything(h.db.ReadTxn())
	h.settle()
	number := h.row(addr("10.1.0.1")).Member
	member := func() *tables.Member {
		m, _, _ := h.Members.Get(h.db.ReadTxn(), tables.MemberByNumber(number))
		return m
	}
	class := func() *tables.Class {
		c, _, _ := h.Classes.Get(h.db.ReadTxn(), tables.ClassByNumber(member().Class))
		return c
	}
	require.Equal(t, []uint32{red.Number}, class().Selectors)

	h.inputs.Endpoints.Remove(e)
	h.settle()
	require.True(t, member().Undesired)
	h.inputs.Namespaces.Put(&tables.Namespace{Name: "a", Labels: labels.Set{"team": "blue"}})
	h.settle()
	require.Equal(t, []uint32{red.Number}, class().Selectors,
		"its pods were never in the namespace as it is now")
	web := h.use(pods("app=web"))[0]
	h.settle()
	require.Equal(t, []uint32{red.Number, web.Number}, class().Selectors)
	h.inputs.Selectors.Remove(red)
	h.settle()
	require.Equal(t, []uint32{red.Number, web.Number}, class().Selectors, "that goes by itself")

	h.inputs.Endpoints.Put(e)
	h.settle()
	require.Equal(t, number, h.row(addr("10.1.0.1")).Member, "the kernel has it")
	require.False(t, member().Undesired)
	require.Equal(t, []uint32{web.Number}, class().Selectors)

	h.inputs.Endpoints.Remove(e)
	h.settle()
	k.all()
	require.Nil(t, member())
	h.inputs.Endpoints.Put(e)
	h.settle()
	require.Greater(t, h.row(addr("10.1.0.1")).Member, number)
}

// Ports are those of names that rulesets ask for.
func TestPorts(t *testing.T) {
	h := newHarness(t)
	h.inputs.Endpoints.Put(pod("a/web", "there", "10.1.0.1", nil,
		tables.NamedPort{Name: "http", Protocol: 6, Port: 80},
		tables.NamedPort{Name: "http", Protocol: 17, Port: 80}))
	h.settle()
	require.Empty(t, h.says(addr("10.1.0.1")))
	first, second := h.ruleset("http"), h.ruleset("http")
	h.settle()
	require.Equal(t, []string{"http=80/6"}, h.says(addr("10.1.0.1")))
	h.inputs.Rulesets.Remove(first)
	h.settle()
	require.Equal(t, []string{"http=80/6"}, h.says(addr("10.1.0.1")))
	h.inputs.Rulesets.Remove(second)
	h.settle()
	require.Empty(t, h.says(addr("10.1.0.1")))
}

// Rulesets that name the same port come at once, one for each label set of a node: all members are
// looked at once for them, some at a time.
func TestPortOfManyRulesets(t *testing.T) {
	const many = 100
	h := newHarness(t)
	h.rule.maxWork = 50
	for i := range many {
		h.inputs.Endpoints.Put(pod(fmt.Sprint("a/p", i), "there", fmt.Sprintf("10.1.0.%d", i),
			labels.Set{"app": fmt.Sprint(i)}, tables.NamedPort{Name: "http", Protocol: 6, Port: 80}))
	}
	h.settle()
	marks := map[key]bool{}
	for range 10 {
		h.rule.rulesetChanged(nil, nil, h.ruleset("http"), func(k key) { marks[k] = true })
	}
	require.Equal(t, map[key]bool{{kind: ofPort, name: "http/tcp"}: true}, marks)
	h.settle()
	for i := range many {
		require.Equal(t, []string{"http=80/6"}, h.says(addr(fmt.Sprintf("10.1.0.%d", i))))
	}
}

// The cell provides the tables, and runs the rule.
func TestCell(t *testing.T) {
	var db *statedb.DB
	var endpoints statedb.RWTable[*tables.Endpoint]
	var rows statedb.Table[*tables.IPCache]
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	jobs := cell.ModulePrivateProviders{job.Registry.NewGroup}
	hv := hive.NewWithOptions(
		hive.Options{ModulePrivateProviders: jobs},
		statedb.Cell,
		job.Cell,
		cell.SimpleHealthCell,
		Cell,
		cell.Provide(
			func() tables.LocalNode { return tables.LocalNode{Name: here} },
			func() tables.AgentNamespace { return "agents" },
			func() bpf.Config { return bpf.DefaultConfig },
			derive.NewMetrics,
			tables.NewEndpointTable, statedb.RWTable[*tables.Endpoint].ToTable,
		),
		provide(tables.NewNodeTable),
		provide(tables.NewCiliumNodeTable),
		provide(tables.NewServiceTable),
		provide(tables.NewBackendSliceTable),
		provide(tables.NewNodeAddressTable),
		provide(tables.NewRouteTable),
		provide(tables.NewNamespaceTable),
		provide(tables.NewSelectorTable),
		provide(tables.NewRulesetTable),
		provide(tables.NewIPCacheMirrorTable),
		provide(tables.NewPeerMirrorTable),
		cell.Invoke(func(
			d *statedb.DB, e statedb.RWTable[*tables.Endpoint], r statedb.Table[*tables.IPCache],
			_ tables.Desired[*tables.IPCache], _ tables.Desired[*tables.Member],
			_ statedb.Table[*tables.Class], _ statedb.Table[*tables.PeerPrefix],
			_ statedb.Table[*tables.SelectorMatch],
		) {
			db, endpoints, rows = d, e, r
		}),
	)
	require.NoError(t, hv.Start(log, t.Context()))
	defer func() { require.NoError(t, hv.Stop(log, t.Context())) }()
	_, initialized := rows.Initialized(db.ReadTxn())
	<-initialized
	wtxn := db.WriteTxn(endpoints)
	_, _, err := endpoints.Insert(wtxn, pod("a/web", here, "10.1.0.1", nil))
	require.NoError(t, err)
	wtxn.Commit()
	await.True(t, func() bool {
		_, _, found := rows.Get(
			db.ReadTxn(), tables.IPCacheByPrefix(netip.MustParsePrefix("10.1.0.1/32")),
		)
		return found
	})
}

func provide[Row any](create func(*statedb.DB) (statedb.RWTable[Row], error)) cell.Cell {
	return cell.Provide(create, statedb.RWTable[Row].ToTable)
}
