// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
	"github.com/sluice-net/sluice/testdata/await"
)

// TestMain runs the tests in a network namespace of their own: the addresses are real.
func TestMain(m *testing.M) {
	const inside = "SLUICE_TEST_EGRESSIP"
	if os.Getenv(inside) != "" || os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=yes")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	} else if err != nil {
		panic(err)
	}
}

var (
	v4 = netip.MustParseAddr("203.0.113.9")
	v6 = netip.MustParseAddr("2001:db8::9")
)

// worlds counts them.
var worlds atomic.Int32

// world is a node's keeper and a link. The node is the only voter.
type world struct {
	*testing.T
	*keeper
	db            *statedb.DB
	ips           tablestest.Table[*tables.EgressIP]
	set           tablestest.Table[*tables.EgressVoters]
	portOwners    tablestest.Table[*tables.PortOwner]
	exits         tablestest.Table[*tables.ExitMirror]
	addresses     tablestest.Table[*tables.NodeAddress]
	devices       tablestest.Table[*tables.Device]
	votes, voters *ebpf.Map
	paths, told   *ebpf.Map
	near, far     *net.Interface // the node's device, and the other end of its link
	health        *cell.SimpleHealth
	stop          func()
}

// Loaded and Map implement [Datapath].
func (w *world) Loaded() bool { return true }
func (w *world) Map(name string) *ebpf.Map {
	return map[string]*ebpf.Map{
		bpf.VotesMap: w.votes, bpf.VotersMap: w.voters, bpf.PathsMap: w.paths,
		bpf.ToldMap: w.told,
	}[name]
}

// word is the type of a word of 4 bytes.
var word = &btf.Int{Name: "word", Size: 4}

// withLock is the type of a value whose last word is the lock of the kernel.
func withLock(size uint32) btf.Type {
	lock := &btf.Struct{
		Name: "bpf_spin_lock", Size: 4, Members: []btf.Member{{Name: "val", Type: word}},
	}
	return &btf.Struct{Name: "value", Size: size, Members: []btf.Member{
		{Name: "words", Type: &btf.Array{Type: word, Index: word, Nelems: size/4 - 1}},
		{Name: "lock", Type: lock, Offset: btf.Bits(size-4) * 8},
	}}
}

func newMap[K, V any](t *testing.T, entries uint32) *ebpf.Map {
	var key K
	var value V
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Hash, KeySize: uint32(unsafe.Sizeof(key)), ValueSize: uint32(unsafe.Sizeof(value)),
		MaxEntries: entries, Value: withLock(uint32(unsafe.Sizeof(value))),
		Key: &btf.Array{Type: word, Index: word, Nelems: uint32(unsafe.Sizeof(key) / 4)},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func newWorld(t *testing.T) *world {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := &world{T: t}
	// Go keeps for a while which index a name had.
	n := worlds.Add(1)
	near, far := fmt.Sprint("near", n), fmt.Sprint("far", n)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: near}, PeerName: far}
	require.NoError(t, netlink.LinkAdd(veth))
	t.Cleanup(func() { require.NoError(t, netlink.LinkDel(veth)) })
	for i, name := range []string{near, far} {
		require.NoError(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0))
		link, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(link))
		own, err := netlink.ParseAddr(fmt.Sprintf("192.0.2.%d/32", i+1))
		require.NoError(t, err)
		require.NoError(t, netlink.AddrAdd(link, own))
	}
	var err error
	require.Eventually(t, func() bool {
		w.near, err = net.InterfaceByName(near)
		require.NoError(t, err)
		w.far, err = net.InterfaceByName(far)
		require.NoError(t, err)
		ofNear, _ := w.near.Addrs()
		ofFar, _ := w.far.Addrs()
		return len(ofNear) > 1 && len(ofFar) > 1 // link-local ones too
	}, 10*time.Second, 10*time.Millisecond)
	w.votes = newMap[bpf.ExitKey, bpf.VotesValue](t, bpf.EgressIPs)
	w.voters = newMap[uint32, bpf.VotersValue](t, 1)
	w.paths = newMap[bpf.NodeKey, bpf.PathValue](t, 1)
	w.told = newMap[bpf.ExitKey, bpf.ToldValue](t, bpf.ToldEntries)
	w.fill()
	return w
}

// fill makes the tables as they are while the programs run at the device.
func (w *world) fill() {
	w.db = statedb.New()
	require.NoError(w, w.db.Start())
	w.Cleanup(func() { require.NoError(w, w.db.Stop()) })
	w.ips = tablestest.Open(w.T, w.db, tables.NewEgressIPTable)
	attachments := tablestest.Open(w.T, w.db, tables.NewAttachmentTable)
	for _, device := range []*net.Interface{w.near, w.far} {
		for _, program := range []bpf.Program{bpf.ProgramFromNetdev, bpf.ProgramToNetdev} {
			attachments.Put(&tables.Attachment{IfIndex: device.Index, Program: program,
				Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}})
		}
	}
	config := tablestest.Open(w.T, w.db, tables.NewConfigMirrorTable)
	config.Put(&tables.ConfigMirror{Value: bpf.ConfigValue{Flags: bpf.ConfigFloating}})
	w.portOwners = tablestest.Open(w.T, w.db, tables.NewPortOwnerTable)
	w.exits = tablestest.Open(w.T, w.db, tables.NewExitMirrorTable)
	w.addresses = tablestest.Open(w.T, w.db, tables.NewNodeAddressTable)
	w.devices = tablestest.Open(w.T, w.db, tables.NewDeviceTable)
	w.link(true)
	w.set = tablestest.Open(w.T, w.db, tables.NewEgressVotersTable)
	w.set.Put(&tables.EgressVoters{Generation: 1, Sets: []tables.VoterSet{{
		Number: 1,
		Voters: []tables.EgressVoter{{Node: "node-1", Addr: netip.MustParseAddr("192.0.2.1")}},
	}}})
	keys := tablestest.Open(w.T, w.db, tables.NewOverlayKeysTable)
	keys.Put(&tables.OverlayKeys{Keys: []bpf.OverlayKey{bpf.NewOverlayKey([16]byte{1})}})
	settings := tablestest.Open(w.T, w.db, tables.NewDatapathConfigTable)
	settings.Put(&tables.DatapathConfig{
		Underlay: netip.MustParseAddr("192.0.2.1"), OverlayIfIndex: 1})
	p := params{
		Config: DefaultConfig, Log: hivetest.Logger(w.T), DB: w.db, Datapath: w,
		Enabled: tables.EgressIPs{Enabled: true}, IPs: w.ips, Voters: w.set,
		Leases:     tablestest.Open(w.T, w.db, tables.NewEgressIPLeaseTable),
		Votes:      tablestest.Open(w.T, w.db, tables.NewEgressIPVoteTable),
		Owners:     tablestest.Open(w.T, w.db, tables.NewEgressIPOwnerTable),
		Nodes:      tablestest.Open(w.T, w.db, tables.NewNodeTable),
		Untaken:    tablestest.Open(w.T, w.db, tables.NewEgressIPUntakenTable),
		Taken:      tablestest.Open(w.T, w.db, tables.NewEgressVotersTakenTable),
		PortOwners: w.portOwners, Exits: w.exits, Addresses: w.addresses, Devices: w.devices,
		Attachments: attachments, ConfigEntries: config,
		Settings: settings, Keys: keys, LocalNode: tables.LocalNode{Name: "node-1"},
	}
	w.keeper = newKeeper(p)
	w.keeper.initialized = func(statedb.WriteTxn) {}
}

// start runs the keeper as after a start of the agent.
func (w *world) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	health, simple := cell.NewSimpleHealth()
	w.health = simple
	go func() { ended <- w.run(ctx, health) }()
	w.stop = func() {
		cancel()
		require.NoError(w, <-ended)
	}
}

// metric returns the value of a metric.
func (w *world) metric(name string) float64 {
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.keeper.metrics.held, w.keeper.metrics.taken)
	families, err := registry.Gather()
	require.NoError(w, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.FailNow(w, "there is no metric "+name)
	return 0
}

// link says whether the device has a carrier.
func (w *world) link(isUp bool) {
	w.devices.Put(&tables.Device{
		Index: w.near.Index, Name: w.near.Name, MAC: w.near.HardwareAddr.String(), Up: true,
		OperUp: isUp,
	})
}

// wants has the node find that one shall have an address, which this one may have.
func (w *world) wants(addr netip.Addr, node string) {
	w.ips.Put(&tables.EgressIP{
		Addr: addr, Pool: "a", Node: node, IfIndex: uint32(w.near.Index),
		NodeAddr: map[string]netip.Addr{
			"node-1": netip.MustParseAddr("192.0.2.1"), "node-2": netip.MustParseAddr("192.0.2.2"),
		}[node],
	})
}

func (w *world) eventually(what string, holds func() bool) {
	w.Helper()
	for end := time.Now().Add(await.Bound); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.health.Lock()
			defer w.health.Unlock()
			rows := statedb.Collect(w.Leases.All(w.db.ReadTxn()))
			require.Fail(w, what, "%s: %v; leases %+v", w.health.Status, w.health.Error, rows)
		}
	}
}

func (w *world) has(addr netip.Addr) bool {
	device, err := deviceOf(addr)
	require.NoError(w, err)
	return device == w.near.Index
}

func (w *world) row(addr netip.Addr) *tables.EgressIPLease {
	row, _, _ := w.Leases.Get(w.db.ReadTxn(), tables.EgressIPLeaseByAddr(addr))
	return row
}

func (w *world) assigned(addr netip.Addr) {
	w.Helper()
	w.eventually("it comes", func() bool { return w.row(addr) != nil && w.row(addr).Assigned })
}
