// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// network is a network whose time is the test's: a node answers after a while, unless it is cut.
type network struct {
	testing.TB
	now      time.Duration
	cut      map[netip.Addr]bool
	down     bool
	delay    time.Duration
	loss     float64 // share of probes that get lost
	random   *rand.Rand
	arrives  map[int]answer // in the order of the probes
	order    int
	sent     map[netip.Addr]int
	noted    *ebpf.Map
	flows    map[netip.Addr]bool // with packets to a node, and back from it unless it is cut
	db       *statedb.DB
	targets  tablestest.Table[*tables.ProbeTarget]
	nodes    tablestest.Table[*tables.Node]
	health   tablestest.Table[*tables.GatewayHealth]
	keys     tablestest.Table[*tables.OverlayKeys]
	settings tablestest.Table[*tables.DatapathConfig]
	prober   *prober
}

// answer is one that is on its way.
type answer struct {
	nonce uint64
	from  netip.Addr
	at    time.Duration
}

func (n *network) Send(frame []byte, to netip.Addr) error {
	nonce := binary.NativeEndian.Uint64(frame[len(frame)-8:])
	n.sent[to]++
	if !n.cut[to] && !n.down && n.random.Float64() >= n.loss {
		n.order++
		n.arrives[n.order] = answer{nonce, to, n.now + n.delay}
	}
	return nil
}

// deliver has the programs note the answers that have come, in the order in which they were sent.
func (n *network) deliver() {
	for _, nonce := range slices.Sorted(maps.Keys(n.arrives)) {
		a := n.arrives[nonce]
		if a.at > n.now {
			continue
		}
		delete(n.arrives, nonce)
		key, value := bpf.NodeKey{Addr: bpf.AddressFrom(a.from)}, bpf.PathValue{}
		if n.noted.Lookup(key, &value) != nil {
			continue // it is not probed any more
		}
		if a.nonce <= value.Nonces[(value.Answers-1)%bpf.PathNonces] {
			continue // it was sent again, or overtaken
		}
		value.Nonces[value.Answers%bpf.PathNonces] = a.nonce
		value.Answers++
		value.Answered = a.at
		require.NoError(n, n.noted.Put(key, value))
	}
}

func (n *network) Close() error { return nil }

// Loaded and Map implement [Datapath].
func (n *network) Loaded() bool         { return true }
func (n *network) Map(string) *ebpf.Map { return n.noted }

func addrOf(node string) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, 0, node[0]})
}

func newNetwork(t testing.TB, nodes ...string) *network {
	n := &network{
		TB: t, now: time.Hour, delay: time.Millisecond, cut: map[netip.Addr]bool{},
		arrives: map[int]answer{}, sent: map[netip.Addr]int{},
		flows: map[netip.Addr]bool{}, random: rand.New(rand.NewPCG(1, 2)), db: statedb.New(),
	}
	var err error
	n.noted, err = ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Hash, KeySize: 16, ValueSize: uint32(unsafe.Sizeof(bpf.PathValue{})),
		MaxEntries: 64,
	})
	if err != nil {
		t.Skip("no BPF maps: ", err)
	}
	t.Cleanup(func() { n.noted.Close() })
	n.targets = tablestest.Open(t, n.db, tables.NewProbeTargetTable)
	n.nodes = tablestest.Open(t, n.db, tables.NewNodeTable)
	n.health = tablestest.Open(t, n.db, tables.NewGatewayHealthTable)
	n.keys = tablestest.Open(t, n.db, tables.NewOverlayKeysTable)
	n.settings = tablestest.Open(t, n.db, tables.NewDatapathConfigTable)
	n.settings.Put(&tables.DatapathConfig{Underlay: addrOf("!"), OverlayIfIndex: 7})
	n.keys.Put(&tables.OverlayKeys{Keys: []bpf.OverlayKey{bpf.NewOverlayKey([16]byte{1, 2})}})
	for _, node := range nodes {
		n.targets.Put(&tables.ProbeTarget{Node: node, Addr: addrOf(node)})
	}
	n.restart()
	return n
}

// restart starts an agent that knows nothing.
func (n *network) restart() {
	n.prober = &prober{
		params: params{
			DB: n.db, Log: hivetest.Logger(n), Datapath: n, Targets: n.targets, Keys: n.keys,
			Settings: n.settings, Health: n.health, Nodes: n.nodes,
		},
		settings:    settings{75 * time.Millisecond, 3},
		metrics:     newMetrics(),
		initialized: func(statedb.WriteTxn) {},
		paths:       map[string]*path{},
		open:        func(frames.Overlay) (transport, error) { return n, nil },
		noted:       noted{n.noted},
	}
	clear(n.arrives)
}

// run lets time pass.
func (n *network) run(d time.Duration) {
	n.Helper()
	for end := n.now + d; n.now < end; {
		n.now += n.prober.settings.tick()
		n.exchange()
		n.deliver()
		require.NoError(n, n.prober.tick(n.now, time.Unix(0, int64(n.now))))
	}
}

// exchange has packets of flows sent, just now.
func (n *network) exchange() {
	for to := range n.flows {
		key, value := bpf.NodeKey{Addr: bpf.AddressFrom(to)}, bpf.PathValue{}
		require.NoError(n, n.noted.Lookup(key, &value))
		value.Sent = n.now
		if !n.cut[to] && !n.down {
			value.Seen = n.now
		}
		require.NoError(n, n.noted.Put(key, value))
	}
}

// states are those of the nodes, in order.
func (n *network) states() (states []tables.PathState) {
	for h := range n.health.All(n.db.ReadTxn()) {
		states = append(states, h.State)
	}
	return states
}

func (n *network) row(node string) *tables.GatewayHealth {
	h, _, found := n.health.Get(n.db.ReadTxn(), tables.GatewayHealthByNode(node))
	require.True(n, found, node)
	return h
}

const (
	unprobed    = tables.PathUnprobed
	healthy     = tables.PathHealthy
	unreachable = tables.PathUnreachable
	lost        = tables.PathLost
	recovering  = tables.PathRecovering
)
