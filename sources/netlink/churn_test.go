// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// newTestStore makes a store with tables of its own.
func newTestStore(t testing.TB) (*store, storeParams) {
	t.Helper()
	db := statedb.New()
	p := storeParams{DB: db}
	var err error
	p.Devices, err = tables.NewDeviceTable(db)
	require.NoError(t, err)
	p.Addresses, err = tables.NewNodeAddressTable(db)
	require.NoError(t, err)
	p.Routes, err = tables.NewRouteTable(db)
	require.NoError(t, err)
	p.Neighbours, err = tables.NewNeighbourTable(db)
	require.NoError(t, err)
	p.BridgeEntries, err = tables.NewBridgeEntryTable(db)
	require.NoError(t, err)
	return newStore(p), p
}

// rows returns what is in the tables of a store.
func (p storeParams) rows() State {
	v := views{DB: p.DB, Devices: p.Devices, Addresses: p.Addresses, Routes: p.Routes, Neighbours: p.Neighbours, BridgeEntries: p.BridgeEntries}
	return v.state()
}

// fromScratch is what the tables hold after nothing but one listing.
func (n *namespace) fromScratch() string {
	l, err := (&socketKernel{namespace: n.ns}).list(n.t.Context(), allKinds)
	require.NoError(n.t, err)
	require.NoError(n.t, l.problems)
	s, p := newTestStore(n.t)
	_, err = s.write(l, nil)
	require.NoError(n.t, err)
	return dump(p.rows())
}

// After any changes, with many that the kernel does not announce, the tables
// are what a listing gives; there is no resync in the time of this test.
func TestKernelChurn(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			v := n.start()
			require.NoError(t, n.LinkAdd(&vn.Bridge{LinkAttrs: vn.LinkAttrs{Name: "bridge"}}))
			run := uint64(time.Now().UnixNano())
			t.Logf("changes of seed %d, %d", seed, run)
			c := churn{namespace: n, Rand: rand.New(rand.NewPCG(seed, run))}
			for round := range 15 {
				for range 1 + c.IntN(30) {
					c.step()
				}
				same := func() bool { return dump(v.state()) == n.fromScratch() }
				if !assert.Eventually(t, same, timeout, 5*time.Millisecond) {
					require.Equal(t, n.fromScratch(), dump(v.state()), "round %d", round)
				}
			}
		})
	}
}

// churn makes random changes. Those that do not apply fail, which is no matter.
type churn struct {
	*namespace
	*rand.Rand
}

func (c *churn) device() vn.Link {
	if l, err := c.LinkByName(fmt.Sprintf("veth%d", c.IntN(3))); err == nil {
		return l
	}
	return c.link("bridge")
}

func (c *churn) step() {
	steps := []func(){
		func() {
			_ = c.LinkAdd(&vn.Veth{
				LinkAttrs: vn.LinkAttrs{Name: fmt.Sprintf("veth%d", c.IntN(3)), NumTxQueues: 2},
				PeerName:  fmt.Sprintf("peer%d", c.IntN(3)),
			})
		},
		func() {
			if l := c.device(); l.Type() == "veth" && c.IntN(3) == 0 {
				_ = c.LinkDel(l)
			}
		},
		func() { _ = c.LinkSetUp(c.device()) },
		func() { _ = c.LinkSetUp(c.device()) },
		func() { _ = c.LinkSetDown(c.device()) },
		c.qdisc,
		func() {
			l := c.device()
			if l.Attrs().Flags&net.FlagUp != 0 { // the kernel does not announce it otherwise
				_ = c.LinkAddAltName(l, fmt.Sprintf("alt%d", c.IntN(5)))
			}
			_ = c.LinkSetMTU(l, 1300+c.IntN(100))
		},
		func() { _ = c.LinkSetMasterByIndex(c.device(), c.index("bridge")) },
		func() { _ = c.LinkSetNoMaster(c.device()) },
		c.addAddress, c.addAddress, c.removeAddress,
		func() { _ = c.RouteAdd(c.route()) },
		func() { _ = c.RouteAppend(c.route()) },
		func() { _ = c.RouteReplace(c.route()) },
		func() { _ = c.RouteDel(c.route()) },
		func() {
			r := c.route()
			r.MultiPath = []*vn.NexthopInfo{{LinkIndex: c.device().Attrs().Index, Gw: r.Gw}, {LinkIndex: r.LinkIndex}}
			r.LinkIndex, r.Gw = 0, nil
			_ = c.RouteReplace(r)
		},
		func() { _ = c.NeighSet(c.neighbour()) },
		func() { _ = c.NeighDel(c.neighbour()) },
		func() { _ = c.NeighSet(c.bridgeEntry()) },
		func() { _ = c.NeighDel(c.bridgeEntry()) },
	}
	steps[c.IntN(len(steps))]()
}

// qdisc gives a device, or the first queue of one that has several, a queueing discipline.
func (c *churn) qdisc() {
	kind := []string{"mq", "pfifo", "pfifo_fast"}[c.IntN(3)]
	attrs := vn.QdiscAttrs{LinkIndex: c.device().Attrs().Index, Parent: vn.HANDLE_ROOT}
	switch {
	case kind == "mq":
		attrs.Handle = vn.MakeHandle(1, 0)
	case c.IntN(2) == 0:
		attrs.Parent = vn.MakeHandle(1, 1)
	}
	q := &vn.GenericQdisc{QdiscAttrs: attrs, QdiscType: kind}
	if c.IntN(4) == 0 {
		_ = c.QdiscDel(q)
		return
	}
	_ = c.QdiscReplace(q)
}

func (c *churn) address() *vn.Addr {
	text := fmt.Sprintf("10.%d.0.%d/24", c.IntN(2), 1+c.IntN(4))
	if c.IntN(3) == 0 {
		text = fmt.Sprintf("fd00:%d::%d/64", c.IntN(2), 1+c.IntN(4))
	}
	a, err := vn.ParseAddr(text)
	require.NoError(c.t, err)
	a.Flags = unix.IFA_F_NODAD
	return a
}

func (c *churn) addAddress() { _ = c.AddrAdd(c.device(), c.address()) }

func (c *churn) removeAddress() {
	l := c.device()
	addrs, err := c.AddrList(l, vn.FAMILY_ALL)
	if err != nil || len(addrs) == 0 {
		return
	}
	_ = c.AddrDel(l, &addrs[c.IntN(len(addrs))])
}

func (c *churn) route() *vn.Route {
	r := &vn.Route{LinkIndex: c.device().Attrs().Index, Priority: c.IntN(2), Table: 254 - c.IntN(2)}
	if c.IntN(3) == 0 {
		r.Dst = ipNet(fmt.Sprintf("fd9%d::/32", c.IntN(2)))
		if c.IntN(2) == 0 {
			r.Gw = net.ParseIP(fmt.Sprintf("fd00:%d::%d", c.IntN(2), 1+c.IntN(4)))
		}
		return r
	}
	r.Dst = ipNet(fmt.Sprintf("10.%d.0.0/16", 100+c.IntN(2)))
	switch c.IntN(3) {
	case 0:
		r.Gw = net.ParseIP(fmt.Sprintf("10.%d.0.%d", c.IntN(2), 1+c.IntN(4)))
	case 1:
		r.Src = net.ParseIP(fmt.Sprintf("10.%d.0.%d", c.IntN(2), 1+c.IntN(4)))
	}
	return r
}

func (c *churn) neighbour() *vn.Neigh {
	states := []int{unix.NUD_PERMANENT, unix.NUD_REACHABLE, unix.NUD_STALE, unix.NUD_FAILED, unix.NUD_NOARP}
	return &vn.Neigh{
		LinkIndex: c.device().Attrs().Index, State: states[c.IntN(len(states))],
		IP: net.ParseIP(fmt.Sprintf("10.0.0.%d", 50+c.IntN(3))), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(c.IntN(3))},
	}
}

func (c *churn) bridgeEntry() *vn.Neigh {
	return &vn.Neigh{
		LinkIndex: c.device().Attrs().Index, Family: unix.AF_BRIDGE, State: unix.NUD_NOARP, Flags: unix.NTF_MASTER,
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 1, byte(c.IntN(3))},
	}
}
