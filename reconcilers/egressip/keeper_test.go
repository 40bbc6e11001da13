// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
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
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/frames"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
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
		MaxEntries: entries, Key: &btf.Array{Type: word, Index: word, Nelems: uint32(unsafe.Sizeof(key) / 4)},
		Value: withLock(uint32(unsafe.Sizeof(value))),
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
	for _, program := range []bpf.Program{bpf.ProgramFromNetdev, bpf.ProgramToNetdev} {
		attachments.Put(&tables.Attachment{IfIndex: w.near.Index, Program: program,
			Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}})
	}
	config := tablestest.Open(w.T, w.db, tables.NewConfigMirrorTable)
	config.Put(&tables.ConfigMirror{Value: bpf.ConfigValue{Flags: bpf.ConfigFloating}})
	w.portOwners = tablestest.Open(w.T, w.db, tables.NewPortOwnerTable)
	w.exits = tablestest.Open(w.T, w.db, tables.NewExitMirrorTable)
	w.devices = tablestest.Open(w.T, w.db, tables.NewDeviceTable)
	w.link(true)
	w.set = tablestest.Open(w.T, w.db, tables.NewEgressVotersTable)
	w.set.Put(&tables.EgressVoters{Generation: 1, Voters: []tables.EgressVoter{
		{Node: "node-1", Addr: netip.MustParseAddr("192.0.2.1")},
	}})
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
		PortOwners: w.portOwners, Exits: w.exits, Devices: w.devices,
		Attachments: attachments, ConfigEntries: config,
		Settings: settings, Keys: keys, LocalNode: tables.LocalNode{Name: "node-1"},
	}
	w.keeper = newKeeper(p, func(statedb.WriteTxn) {})
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

// link says whether the device has a carrier.
func (w *world) link(isUp bool) {
	w.devices.Put(&tables.Device{Index: w.near.Index, Name: w.near.Name, Up: true, OperUp: isUp})
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
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
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

// An address comes with the votes, is announced several times, and goes with them. Its entry stays
// until nothing is translated to it.
func TestAddressComesAndGoes(t *testing.T) {
	w := newWorld(t)
	listen, err := arp.Dial(w.far)
	require.NoError(t, err)
	defer listen.Close()
	listen6, _, err := ndp.Listen(w.far, ndp.LinkLocal)
	require.NoError(t, err)
	defer listen6.Close()
	require.NoError(t, listen6.JoinGroup(allNodes))
	w.start()
	defer func() { w.stop() }()
	owner := &tables.PortOwner{
		OwnerKey: bpf.OwnerKey{Egress: bpf.AddressFrom(v6)}, Reconciled: tables.Pending()}
	w.portOwners.Put(owner)
	w.wants(v4, "node-1")
	w.wants(v6, "node-1")
	w.assigned(v4)
	require.Nil(t, w.row(v6), "replies to it would be dropped")
	known := *owner
	known.Reconciled = tables.Done()
	w.portOwners.Put(&known)
	for n := 0; n < 2; {
		require.NoError(t, listen.SetDeadline(time.Now().Add(20*time.Second)))
		p, _, err := listen.Read()
		require.NoError(t, err)
		if p.SenderIP == v4 && p.TargetIP == v4 &&
			p.SenderHardwareAddr.String() == w.near.HardwareAddr.String() {
			require.True(t, w.has(v4))
			n++
		}
	}
	for n := 0; n < 2; {
		require.NoError(t, listen6.SetDeadline(time.Now().Add(20*time.Second)))
		m, _, _, err := listen6.ReadFrom()
		require.NoError(t, err)
		if na, ok := m.(*ndp.NeighborAdvertisement); ok && na.TargetAddress == v6 {
			require.True(t, na.Override && !na.Solicited)
			require.Equal(t, linkLayer(ndp.Target, w.near), na.Options)
			n++
		}
	}
	for _, addr := range []netip.Addr{v4, v6} {
		w.assigned(addr)
		require.Equal(t, []string{"node-1"}, w.row(addr).Votes)
		require.NotZero(t, w.row(addr).Generation)
	}

	exit := &tables.ExitMirror{Key: keyOf(v6)}
	w.exits.Put(exit)
	w.wants(v4, "node-2")
	w.ips.Remove(&tables.EgressIP{Addr: v6})
	for _, addr := range []netip.Addr{v4, v6} {
		w.eventually("it goes", func() bool { return !w.row(addr).Assigned })
		require.False(t, w.has(addr))
		require.False(t, w.row(addr).Held)
		require.Empty(t, w.row(addr).Votes)
	}
	var v bpf.VotesValue
	require.NoError(t, w.votes.Lookup(keyOf(v6), &v))
	w.exits.Remove(exit)
	w.eventually("it is forgotten", func() bool { return w.row(v6) == nil })
	require.ErrorIs(t, w.votes.Lookup(keyOf(v6), &v), ebpf.ErrKeyNotExist)
	require.NoError(t, w.votes.Lookup(keyOf(v4), &v), "others may vote for this node again")

	w.wants(v4, "node-1")
	w.assigned(v4)
}

// An agent that stops leaves the address; the next one goes on, or takes the address away if it
// shall be elsewhere by then.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.wants(v4, "node-1")
	w.assigned(v4)
	w.stop()
	require.True(t, w.has(v4))
	for _, node := range []string{"node-1", "node-2"} {
		w.fill()
		w.wants(v4, node)
		w.start()
		if node == "node-1" {
			w.assigned(v4)
			w.eventually("it is voted for", func() bool { return w.row(v4).Held })
			require.True(t, w.has(v4))
		} else {
			w.eventually("it goes", func() bool { return w.row(v4) != nil && !w.has(v4) })
		}
		w.stop()
	}
}

// An address that another host has is not used, unless a node has told that it is that; and that of
// others on this node is left alone.
func TestConflicts(t *testing.T) {
	w := newWorld(t)
	other := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	answer, err := arp.Dial(w.far)
	require.NoError(t, err)
	go func() {
		for {
			p, _, err := answer.Read()
			if err != nil {
				return
			}
			if p.Operation == arp.OperationRequest && p.TargetIP == v4 {
				reply, _ := arp.NewPacket(arp.OperationReply, other, v4, p.SenderHardwareAddr, p.SenderIP)
				answer.WriteTo(reply, w.near.HardwareAddr)
			}
		}
	}()
	defer answer.Close()
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-1")
	w.eventually("it is told", func() bool { return w.row(v4) != nil && w.row(v4).Problem != "" })
	require.Equal(t, "check 203.0.113.9 before use: 203.0.113.9 is in use by 02:00:00:00:00:09 on "+
		w.near.Name, w.row(v4).Problem)
	require.False(t, w.has(v4))
	require.False(t, w.row(v4).Assigned)
	// What answers may be a node that had it before: nothing is asked, as after a boot.
	w.ips.Put(&tables.EgressIP{
		Addr: v4, Pool: "a", Node: "node-1", NodeAddr: netip.MustParseAddr("192.0.2.1"),
		Owner: "node-2", OwnerAddr: netip.MustParseAddr("192.0.2.2"), IfIndex: uint32(w.near.Index),
	})
	w.assigned(v4)

	require.NoError(t, assign(v6, w.near.Index))
	defer func() { require.NoError(t, remove(v6)) }()
	w.wants(v6, "node-1")
	w.eventually("health tells", func() bool {
		w.health.Lock()
		defer w.health.Unlock()
		return w.health.Error != nil && strings.Contains(w.health.Error.Error(), "left alone")
	})
	require.Nil(t, w.row(v6))
	require.True(t, w.has(v6))
}

// Without voters, or with a set of them that has a mistake, nothing changes, and health tells why.
func TestVotersAreMissing(t *testing.T) {
	w := newWorld(t)
	tells := func(text string) {
		w.eventually(text, func() bool {
			w.health.Lock()
			defer w.health.Unlock()
			return w.health.Error != nil && strings.Contains(w.health.Error.Error(), text)
		})
	}
	row, _, _ := w.set.Get(w.db.ReadTxn(), tables.EgressVotersByIndex(0))
	w.set.Remove(row)
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-1")
	tells("no nodes vote yet")
	w.set.Put(row)
	w.assigned(v4)
	w.set.Put(&tables.EgressVoters{Error: "generation: is missing"})
	tells("generation: is missing")
	w.wants(v4, "node-2")
	w.eventually("it goes", func() bool { return !w.has(v4) })
	w.wants(v4, "node-1")
	w.assigned(v4) // by the set before
}

// TestVotesThatDoNotCount: a node that is not probed can answer no votes, which is told.
func TestVotesThatDoNotCount(t *testing.T) {
	w := newWorld(t)
	w.socket.open = func(frames.Overlay) (transport, error) { return &wire{}, nil }
	require.NoError(t, w.adopt())
	w.voter.from = 0
	w.wants(v4, "node-2")
	require.NoError(t, w.tick(t.Context()))
	require.ErrorContains(t, w.tick(t.Context()), "192.0.2.2 do not count: it is not probed")
	require.NoError(t, w.paths.Put(
		bpf.NodeKey{Addr: bpf.AddressFrom(netip.MustParseAddr("192.0.2.2"))}, bpf.PathValue{}))
	require.NoError(t, w.tick(t.Context()))
}

// TestShorterTerm: the term of a former agent is kept until its votes have run out, for the agent
// that follows this one.
func TestShorterTerm(t *testing.T) {
	w := newWorld(t)
	clock := uint64(1e12)
	w.keeper.now = func() uint64 { return clock }
	const former = uint64(10 * time.Second)
	require.NoError(t, w.voters.Put(uint32(0), bpf.VotersValue{Term: former}))
	term := func() uint64 {
		var v bpf.VotersValue
		require.NoError(t, w.followVoters())
		require.NoError(t, w.voters.Lookup(uint32(0), &v))
		return v.Term
	}
	require.NoError(t, w.adopt())
	require.Equal(t, former, term())
	clock += patience(former) - 1
	require.Equal(t, former, term())
	clock++
	require.Equal(t, w.voter.term(), term())
}

// TestMoreAddressesThanRoom: addresses for which there is no room are told as one, and others come.
func TestMoreAddressesThanRoom(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.adopt())
	const more = 3
	for i := range bpf.EgressIPs + more {
		w.wants(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), "node-2")
	}
	for range 2 {
		require.EqualError(t, w.followCandidates(),
			"3 addresses cannot come here: sluice_votes has room for 1024")
		require.Len(t, w.owned, bpf.EgressIPs)
	}
	w.ips.Remove(&tables.EgressIP{Addr: netip.AddrFrom4([4]byte{203, 0, 0, 0})})
	require.Error(t, w.followCandidates())
	require.ErrorContains(t, w.followCandidates(), "2 addresses")
	require.Len(t, w.owned, bpf.EgressIPs)
}

// sent is a message to a node.
type sent struct {
	to    netip.Addr
	frame []byte
}

// wire keeps what a node sends.
type wire struct{ frames []sent }

func (w *wire) Send(frame []byte, to netip.Addr) error {
	w.frames = append(w.frames, sent{to, slices.Clone(frame)})
	return nil
}

func (*wire) Close() error { return nil }

// TestOwnersAreTold: a node tells all others which addresses it has, at first some times and then
// from time to time, each time with a greater number, and believes others for a while.
func TestOwnersAreTold(t *testing.T) {
	w := newWorld(t)
	h, out := w.teller, &wire{}
	h.socket.open = func(frames.Overlay) (transport, error) { return out, nil }
	clock := uint64(1e9)
	h.now = func() uint64 { return clock }
	for i := range 3 {
		tablestest.Insert(t, w.db, w.Nodes.(statedb.RWTable[*tables.Node]), &tables.Node{
			Name:        fmt.Sprintf("node-%d", i+1),
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})},
		})
	}
	for range 10 * tellFirst {
		clock += 1e7
		require.NoError(t, h.tell([]netip.Addr{v4, v6}))
	}
	require.Len(t, out.frames, 2*tellFirst)
	last := uint64(0)
	for i, m := range out.frames {
		number := binary.NativeEndian.Uint64(m.frame[14:])
		require.Greater(t, number, last)
		last = number
		require.Equal(t, netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i%2)}), m.to)
	}
	clock += tellLater
	require.NoError(t, h.tell([]netip.Addr{v4, v6}))
	require.Len(t, out.frames, 2*tellFirst+2)
	require.NoError(t, h.tell([]netip.Addr{v4}))
	require.Len(t, out.frames, 2*tellFirst+4, "others at once")

	// In a large cluster it takes several ticks, and new addresses come first.
	out.frames = nil
	h.now = func() uint64 {
		clock += uint64(DefaultConfig.tick())
		return clock
	}
	require.NoError(t, h.tell([]netip.Addr{v4, v6}))
	require.Empty(t, out.frames)
	h.now = func() uint64 { return clock }
	require.NoError(t, h.tell([]netip.Addr{v6}))
	require.Len(t, out.frames, 2)
	for _, m := range out.frames {
		require.Equal(t, v6.AsSlice(), m.frame[len(m.frame)-16:])
	}

	owner := func() string {
		require.NoError(t, h.listen(nil))
		row, _, found := h.Owners.Get(w.db.ReadTxn(), tables.EgressIPOwnerByAddr(v6))
		if !found {
			return ""
		}
		return row.NodeAddr.String()
	}
	require.Empty(t, owner())
	require.ErrorIs(t, w.told.Lookup(keyOf(v6), &bpf.ToldValue{}), ebpf.ErrKeyNotExist)
	w.wants(v6, "node-2")
	require.Empty(t, owner())
	require.NoError(t, w.told.Update(keyOf(v6), bpf.ToldValue{
		Node: bpf.AddressFrom(netip.MustParseAddr("192.0.2.3")), At: clock}, ebpf.UpdateExist))
	require.Equal(t, "192.0.2.3", owner())
	clock += believedFor
	require.Empty(t, owner())
	require.NoError(t, h.listen([]netip.Addr{v6}))
	row, _, _ := h.Owners.Get(w.db.ReadTxn(), tables.EgressIPOwnerByAddr(v6))
	require.Equal(t, "192.0.2.1", row.NodeAddr.String())
	w.ips.Remove(&tables.EgressIP{Addr: v6})
	require.Empty(t, owner())
	require.ErrorIs(t, w.told.Lookup(keyOf(v6), &bpf.ToldValue{}), ebpf.ErrKeyNotExist)
}

// TestVotesGoOn: while many addresses come, votes are repeated in time.
func TestVotesGoOn(t *testing.T) {
	w := newWorld(t)
	const count = 600
	clock := uint64(1e12)
	w.keeper.now = func() uint64 { // as long as it takes to bring an address, roughly
		clock += 3e5
		return clock
	}
	require.NoError(t, w.adopt())
	clock += w.voter.patience()
	addrs := make([]netip.Addr, count)
	for i := range addrs {
		addrs[i] = netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
		w.wants(addrs[i], "node-2")
	}
	require.NoError(t, w.followCandidates())
	for _, addr := range addrs {
		w.wants(addr, "node-1")
	}
	for tick, assigned := 0, 0; assigned < count; tick++ {
		require.Less(t, tick, count)
		require.NoError(t, w.tick(t.Context()))
		assigned = 0
		for _, addr := range addrs {
			require.True(t, w.row(addr).Held, "%s after %d ticks", addr, tick)
			if w.row(addr).Assigned {
				assigned++
			}
		}
	}
}
