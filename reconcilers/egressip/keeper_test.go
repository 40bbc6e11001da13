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

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/sluice-net/sluice/bpf"
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

// world is a node's keeper, a link, and an API server.
type world struct {
	*testing.T
	*keeper
	db        *statedb.DB
	ips       tablestest.Table[*tables.EgressIP]
	exits     tablestest.Table[*tables.ExitMirror]
	devices   tablestest.Table[*tables.Device]
	client    *fake.Clientset
	near, far *net.Interface // the node's device, and the other end of its link
	health    *cell.SimpleHealth
	stop      func()
}

func newWorld(t *testing.T) *world {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := &world{T: t, client: fake.NewClientset()}
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
	w.exits = tablestest.Open(w.T, w.db, tables.NewExitMirrorTable)
	w.devices = tablestest.Open(w.T, w.db, tables.NewDeviceTable)
	w.link(true)
	rows := tablestest.Open(w.T, w.db, tables.NewEgressIPLeaseTable)
	w.keeper = &keeper{
		claims: map[netip.Addr]*claim{}, problems: map[netip.Addr]error{},
		initialized: func(statedb.WriteTxn) {},
		params: params{
			Connection: Connection{Leases: w.client.CoordinationV1(), Namespace: "sluice-system"},
			Config:     DefaultConfig, DB: w.db, Enabled: tables.EgressIPs{Enabled: true},
			IPs: w.ips, Rows: rows, Exits: w.exits, Devices: w.devices,
			Attachments: attachments, ConfigEntries: config,
			LocalNode: tables.LocalNode{Name: "node-1"},
		},
	}
}

// start runs the keeper as after a start of the agent; the kernel takes all leases.
func (w *world) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}, 2)
	health, simple := cell.NewSimpleHealth()
	w.health = simple
	w.keeper.health = health
	go func() {
		defer func() { ended <- struct{}{} }()
		w.keep(ctx)
	}()
	go func() {
		defer func() { ended <- struct{}{} }()
		for ctx.Err() == nil {
			wtxn := w.db.WriteTxn(w.Rows)
			for row := range w.Rows.All(wtxn) {
				if row.Status.Kind == reconciler.StatusKindPending {
					w.Rows.Insert(wtxn, tables.WithStatus(row, reconciler.StatusDone()))
				}
			}
			wtxn.Commit()
			time.Sleep(5 * time.Millisecond)
		}
	}()
	w.stop = func() { cancel(); <-ended; <-ended }
}

// link says whether the device has a carrier.
func (w *world) link(isUp bool) {
	w.devices.Put(&tables.Device{Index: w.near.Index, Name: w.near.Name, Up: true, OperUp: isUp})
}

func (w *world) wants(addr netip.Addr, node string) {
	row := &tables.EgressIP{Addr: addr, Pool: "a", Node: node}
	if node == "node-1" {
		row.IfIndex = uint32(w.near.Index)
	}
	w.ips.Put(row)
}

func (w *world) eventually(what string, holds func() bool) {
	w.Helper()
	require.Eventually(w, holds, 20*time.Second, 10*time.Millisecond, what)
}

func (w *world) has(addr netip.Addr) bool {
	device, err := deviceOf(addr)
	require.NoError(w, err)
	return device == w.near.Index
}

func (w *world) holder(addr netip.Addr) string {
	lease, err := w.client.CoordinationV1().Leases("sluice-system").Get(
		context.Background(), leaseName(addr), metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func (w *world) row(addr netip.Addr) *tables.EgressIPLease {
	row, _, _ := w.Rows.Get(w.db.ReadTxn(), tables.EgressIPLeaseByAddr(addr))
	return row
}

// An address comes with its lease, is announced several times, and goes with the lease being
// given back.
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
	w.wants(v4, "node-1")
	w.wants(v6, "node-1")
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
	now, err := Now()
	require.NoError(t, err)
	for _, addr := range []netip.Addr{v4, v6} {
		w.eventually("it is told", func() bool { return w.row(addr).Assigned })
		require.Equal(t, "node-1", w.holder(addr))
		require.InDelta(t, now, w.row(addr).Deadline, float64(w.Config.EgressIPLease))
	}

	w.wants(v4, "node-2")
	w.wants(v6, "")
	for _, addr := range []netip.Addr{v4, v6} {
		w.eventually("it is given up", func() bool { return w.row(addr) == nil })
		require.False(t, w.has(addr))
		w.eventually("and so is the lease", func() bool { return w.holder(addr) == "" })
	}
}

// An agent that stops leaves the address and keeps the lease; the next one goes on, or takes
// the address away if it shall be elsewhere by then.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.wants(v4, "node-1")
	w.eventually("it comes", func() bool { return w.row(v4) != nil && w.row(v4).Assigned })
	left := []bpf.Entry[bpf.ExitKey, bpf.FloatingValue]{
		{Key: w.row(v4).MapKey(), Value: w.row(v4).MapValue()},
	}
	w.stop()
	require.True(t, w.has(v4))
	require.Equal(t, "node-1", w.holder(v4))

	for _, node := range []string{"node-1", "node-2"} {
		w.fill()
		require.NoError(t, w.adopt(left))
		require.Equal(t, left[0].Value, w.row(v4).MapValue())
		w.wants(v4, node)
		w.start()
		if node == "node-1" {
			w.eventually("it is renewed", func() bool { return w.row(v4).Deadline > left[0].Value.Deadline })
			require.True(t, w.has(v4))
		} else {
			w.eventually("it goes", func() bool { return w.row(v4) == nil && !w.has(v4) })
		}
		w.stop()
	}
}

// An address that another host has is not used, that of others on this node is left alone, and
// the lease of another node is waited for.
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
	require.Equal(t, "203.0.113.9 is in use by 02:00:00:00:00:09 on "+w.near.Name, w.row(v4).Problem)
	require.False(t, w.has(v4))
	require.False(t, w.row(v4).Assigned)

	require.NoError(t, assign(v6, w.near.Index))
	defer func() { require.NoError(t, remove(v6)) }()
	w.wants(v6, "node-1")
	w.eventually("health tells", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.problems[v6] != nil
	})
	w.mu.Lock()
	require.ErrorContains(t, w.problems[v6], "left alone")
	w.mu.Unlock()
	require.Nil(t, w.row(v6))
	require.True(t, w.has(v6))
	require.Empty(t, w.holder(v6))
}

// That a Lease cannot be read or written is in the health of the agent.
func TestLeaseIsForbidden(t *testing.T) {
	w := newWorld(t)
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", nil)
	verb := atomic.Value{}
	verb.Store("create")
	w.client.PrependReactor("*", "leases", func(a k8stesting.Action) (bool, runtime.Object, error) {
		return a.GetVerb() == verb.Load(), nil, forbidden
	})
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-1")
	problem := func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		return fmt.Sprint(w.problems[v4])
	}
	says := "ask for the lease of 203.0.113.9: " + forbidden.Error()
	w.eventually("it cannot be created", func() bool { return problem() == says })
	verb.Store("get")
	w.eventually("it cannot be read", func() bool { return problem() == says })
	verb.Store("")
	w.eventually("it comes", func() bool { return w.row(v4) != nil && w.row(v4).Assigned })
	w.eventually("it is forgotten", func() bool { return problem() == "<nil>" })
}

// As long as the kernel translates to an address that is withdrawn, it has a lease there that has
// run out, and the Lease is not given back.
func TestSilentUntilTranslatedNoMore(t *testing.T) {
	w := newWorld(t)
	w.start()
	defer func() { w.stop() }()
	w.wants(v4, "node-1")
	w.eventually("it comes", func() bool { return w.row(v4) != nil && w.row(v4).Assigned })
	exit := &tables.ExitMirror{Key: bpf.ExitKey{Addr: bpf.AddressFrom(v4)}}
	w.exits.Put(exit)
	w.wants(v4, "node-2")
	w.eventually("it goes from the device", func() bool { return !w.has(v4) })
	w.eventually("it is silent", func() bool { return w.row(v4).Deadline == 0 })
	require.NotNil(t, w.row(v4))
	require.Equal(t, "node-1", w.holder(v4))
	w.exits.Remove(exit)
	w.eventually("it is given up", func() bool { return w.row(v4) == nil })
	w.eventually("and so is the lease", func() bool { return w.holder(v4) == "" })
}
