// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"net"
	"runtime"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace is a network namespace of a test.
type namespace struct {
	*vn.Handle
	t  testing.TB
	ns netns.NsHandle
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	requireRoot(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := netns.Get()
	require.NoError(t, err)
	defer host.Close()
	ns, err := netns.New()
	require.NoError(t, err)
	require.NoError(t, netns.Set(host))
	handle, err := vn.NewHandleAt(ns, unix.NETLINK_ROUTE)
	require.NoError(t, err)
	t.Cleanup(func() {
		handle.Close()
		ns.Close()
	})
	return &namespace{Handle: handle, t: t, ns: ns}
}

// start runs the real cell in the namespace.
func (n *namespace) start() *views {
	return start(n.t, Cell, cell.Provide(func() netns.NsHandle { return n.ns }))
}

func (n *namespace) link(name string) vn.Link {
	n.t.Helper()
	l, err := n.LinkByName(name)
	require.NoError(n.t, err)
	return l
}

func (n *namespace) index(name string) int { return n.link(name).Attrs().Index }

func (n *namespace) addVeth(name, peer string) {
	n.t.Helper()
	require.NoError(n.t, n.LinkAdd(&vn.Veth{LinkAttrs: vn.LinkAttrs{Name: name}, PeerName: peer}))
	require.NoError(n.t, n.LinkSetUp(n.link(name)))
	require.NoError(n.t, n.LinkSetUp(n.link(peer)))
}

func (n *namespace) addAddr(device, addr string) {
	n.t.Helper()
	a, err := vn.ParseAddr(addr)
	require.NoError(n.t, err)
	a.Flags = unix.IFA_F_NODAD
	require.NoError(n.t, n.AddrAdd(n.link(device), a))
}

func (n *namespace) delAddr(device, addr string) {
	n.t.Helper()
	a, err := vn.ParseAddr(addr)
	require.NoError(n.t, err)
	require.NoError(n.t, n.AddrDel(n.link(device), a))
}

func ipNet(prefix string) *net.IPNet {
	_, ipn, err := net.ParseCIDR(prefix)
	if err != nil {
		panic(err)
	}
	return ipn
}
