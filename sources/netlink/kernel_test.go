// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/tables"
)

// hasRow reports whether a table has a row with the given columns, of which
// "*" fits all.
func hasRow[Row interface{ TableRow() []string }](rows []Row, columns ...string) bool {
	return slices.ContainsFunc(rows, func(r Row) bool {
		return slices.EqualFunc(r.TableRow(), columns, func(have, want string) bool { return want == "*" || have == want })
	})
}

func TestKernelDevices(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	v := n.start()
	v.await(t, "the loopback device", func(s State) bool {
		return v.initialized() && hasRow(s.Devices, "1", "lo", "-", "loopback", "false", "false",
			"65536", "-", "-", "-", "-", "noop")
	})
	v.await(t, "health, which is told after the tables", func(State) bool { return v.healthy() })

	n.addVeth("left", "right")
	left, right := n.link("left").Attrs(), n.link("right").Attrs()
	v.await(t, "the pair", func(s State) bool {
		return hasRow(s.Devices, strconv.Itoa(left.Index), "left", "-", "veth", "true", "true", "1500",
			left.HardwareAddr.String(), "-", strconv.Itoa(right.Index), "-", "noqueue")
	})

	require.NoError(t, n.LinkAdd(&vn.Bridge{LinkAttrs: vn.LinkAttrs{Name: "bridge"}}))
	require.NoError(t, n.LinkSetMasterByIndex(n.link("left"), n.index("bridge")))
	v.await(t, "the port", func(State) bool {
		d, _, found := v.Devices.Get(v.DB.ReadTxn(), tables.DevicesByMaster(n.index("bridge")))
		return found && d.Name == "left"
	})
	require.NoError(t, n.LinkSetNoMaster(n.link("left")))
	v.await(t, "the port released", func(s State) bool {
		d, _, found := v.Devices.Get(v.DB.ReadTxn(), tables.DeviceByIndex(left.Index))
		return found && d.MasterIndex == 0
	})

	require.NoError(t, n.LinkAddAltName(n.link("left"), "an-alternative-name-longer-than-15"))
	v.await(t, "the alternative name", func(State) bool {
		d, _, found := v.Devices.Get(v.DB.ReadTxn(), tables.DevicesByName("an-alternative-name-longer-than-15"))
		return found && d.Name == "left"
	})
	require.NoError(t, n.LinkSetName(n.link("left"), "renamed"))
	v.await(t, "the new name", func(State) bool {
		_, _, former := v.Devices.Get(v.DB.ReadTxn(), tables.DevicesByName("left"))
		d, _, found := v.Devices.Get(v.DB.ReadTxn(), tables.DevicesByName("renamed"))
		return found && !former && d.Index == left.Index
	})
	require.NoError(t, n.LinkSetMTU(n.link("renamed"), 1400))
	require.NoError(t, n.LinkSetDown(n.link("renamed")))
	v.await(t, "down", func(s State) bool {
		return hasRow(s.Devices, strconv.Itoa(left.Index), "renamed",
			"an-alternative-name-longer-than-15", "veth", "false", "false", "1400", "*", "*", "*", "*", "*")
	})

	require.NoError(t, n.LinkDel(n.link("renamed")))
	v.await(t, "both ends gone", func(s State) bool { return len(s.Devices) == 2 })
}

func TestKernelPeerInOtherNamespace(t *testing.T) {
	t.Parallel()
	n, pod := newNamespace(t), newNamespace(t)
	v := n.start()
	n.addVeth("host0", "pod0")
	require.NoError(t, n.LinkSetNsFd(n.link("pod0"), int(pod.ns)))
	var id, index int
	v.await(t, "peer in a namespace", func(s State) bool {
		d, _, found := v.Devices.Get(v.DB.ReadTxn(), tables.DevicesByName("host0"))
		if found {
			id, index = d.PeerNetNSID, d.ParentIndex
		}
		_, _, still := v.Devices.Get(v.DB.ReadTxn(), tables.DevicesByName("pod0"))
		return found && id >= 0 && !still
	})
	want, err := n.GetNetNsIdByFd(int(pod.ns))
	require.NoError(t, err)
	require.Equal(t, want, id)
	require.Equal(t, pod.index("pod0"), index)
}

func TestKernelAddresses(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	v := n.start()
	n.addVeth("eth0", "peer0")
	for _, addr := range []string{"10.0.0.9/24", "10.0.0.5/24", "10.1.0.1/16", "fd00::5/64"} {
		n.addAddr("eth0", addr)
	}
	dev := strconv.Itoa(n.index("eth0"))
	v.await(t, "all addresses in the kernel's order", func(s State) bool {
		return hasRow(s.Addresses, "10.0.0.9", "10.0.0.0/24", dev, "eth0", "global", "false", "false", "0") &&
			hasRow(s.Addresses, "10.1.0.1", "10.1.0.0/16", dev, "eth0", "global", "false", "false", "1") &&
			hasRow(s.Addresses, "10.0.0.5", "10.0.0.0/24", dev, "eth0", "global", "true", "false", "2") &&
			hasRow(s.Addresses, "fd00::5", "fd00::/64", dev, "eth0", "global", "false", "false", "0")
	})

	require.NoError(t, n.LinkSetName(n.link("eth0"), "uplink"))
	v.await(t, "the new name", func(s State) bool {
		return hasRow(s.Addresses, "10.0.0.9", "*", dev, "uplink", "*", "*", "*", "*")
	})

	n.delAddr("uplink", "10.1.0.1/16")
	v.await(t, "one gone", func(s State) bool {
		return hasRow(s.Addresses, "10.0.0.5", "*", dev, "*", "*", "true", "*", "1") && !hasRow(s.Addresses, "10.1.0.1", "*", "*", "*", "*", "*", "*", "*")
	})

	require.NoError(t, n.LinkDel(n.link("uplink")))
	v.await(t, "none left", func(s State) bool { return len(s.Addresses) == 0 && len(s.Routes) == 0 })
}

// An address that is not checked for duplicates yet is none.
func TestKernelTentativeAddress(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	require.NoError(t, n.LinkAdd(&vn.Veth{LinkAttrs: vn.LinkAttrs{Name: "eth0"}, PeerName: "peer0"}))
	a, err := vn.ParseAddr("fd00::7/64")
	require.NoError(t, err)
	require.NoError(t, n.AddrAdd(n.link("eth0"), a)) // the device is down, so it stays tentative
	v := n.start()
	v.await(t, "no address", func(s State) bool { return v.initialized() && len(s.Devices) == 3 && len(s.Addresses) == 0 })
	require.NoError(t, n.LinkSetUp(n.link("eth0")))
	require.NoError(t, n.LinkSetUp(n.link("peer0")))
	v.await(t, "the address", func(s State) bool {
		return hasRow(s.Addresses, "fd00::7", "*", "*", "*", "*", "*", "*", "*")
	})
}

func TestKernelRoutes(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	v := n.start()
	n.addVeth("eth0", "peer0")
	n.addVeth("eth1", "peer1")
	n.addAddr("eth0", "10.0.0.5/24")
	n.addAddr("eth0", "10.0.0.6/32")
	n.addAddr("eth1", "10.1.0.5/24")
	n.addAddr("eth1", "fd01::5/64")
	i0, i1 := n.index("eth0"), n.index("eth1")
	d0, d1 := strconv.Itoa(i0), strconv.Itoa(i1)
	v.await(t, "routes of the addresses", func(s State) bool {
		return hasRow(s.Routes, "254", "10.0.0.0/24", "0", d0, "-", "10.0.0.5", "unicast", "link") &&
			hasRow(s.Routes, "255", "10.0.0.5/32", "0", d0, "-", "10.0.0.5", "local", "host") &&
			hasRow(s.Routes, "255", "10.0.0.255/32", "0", d0, "-", "10.0.0.5", "broadcast", "link") &&
			hasRow(s.Routes, "255", "fd01::5/128", "0", d1, "-", "-", "local", "global") &&
			hasRow(s.Routes, "255", "ff00::/8", "256", d1, "-", "-", "multicast", "global")
	})

	def := &vn.Route{LinkIndex: i0, Gw: net.ParseIP("10.0.0.1"), Dst: ipNet("0.0.0.0/0"), Src: net.ParseIP("10.0.0.6")}
	require.NoError(t, n.RouteAdd(def))
	v.await(t, "the default route", func(State) bool {
		r, _, found := v.Routes.Get(v.DB.ReadTxn(), tables.RoutesByDestination(netip.MustParsePrefix("0.0.0.0/0")))
		return found && r.Gateway == netip.MustParseAddr("10.0.0.1") && r.DeviceIndex == i0 && r.Source == netip.MustParseAddr("10.0.0.6")
	})

	t.Log("replaced")
	def.Gw = net.ParseIP("10.0.0.2")
	require.NoError(t, n.RouteReplace(def))
	v.await(t, "the other gateway only", func(s State) bool {
		return hasRow(s.Routes, "254", "0.0.0.0/0", "0", d0, "10.0.0.2", "*", "*", "*") &&
			!hasRow(s.Routes, "254", "0.0.0.0/0", "0", d0, "10.0.0.1", "*", "*", "*")
	})

	t.Log("dropped without notice, for its source is gone")
	n.delAddr("eth0", "10.0.0.6/32")
	v.await(t, "no default route", func(s State) bool { return !hasRow(s.Routes, "254", "0.0.0.0/0", "*", "*", "*", "*", "*", "*") })

	t.Log("several next hops, one of them dead for a while")
	require.NoError(t, n.RouteAdd(&vn.Route{Dst: ipNet("192.168.0.0/16"), Priority: 7, Table: 100, MultiPath: []*vn.NexthopInfo{
		{LinkIndex: i0, Gw: net.ParseIP("10.0.0.1")}, {LinkIndex: i1, Gw: net.ParseIP("10.1.0.1")},
	}}))
	hop0 := []string{"100", "192.168.0.0/16", "7", d0, "10.0.0.1", "-", "unicast", "global"}
	hop1 := []string{"100", "192.168.0.0/16", "7", d1, "10.1.0.1", "-", "unicast", "global"}
	v.await(t, "both hops", func(s State) bool { return hasRow(s.Routes, hop0...) && hasRow(s.Routes, hop1...) })
	require.NoError(t, n.LinkSetDown(n.link("eth1")))
	v.await(t, "one hop", func(s State) bool {
		return hasRow(s.Routes, hop0...) && !hasRow(s.Routes, hop1...) && !hasRow(s.Routes, "254", "10.1.0.0/24", "*", "*", "*", "*", "*", "*")
	})
	require.NoError(t, n.LinkSetUp(n.link("eth1")))
	v.await(t, "both hops again", func(s State) bool { return hasRow(s.Routes, hop0...) && hasRow(s.Routes, hop1...) })

	t.Log("no device")
	blackhole := &vn.Route{Dst: ipNet("10.9.0.0/16"), Type: unix.RTN_BLACKHOLE}
	require.NoError(t, n.RouteAdd(blackhole))
	v.await(t, "blackhole", func(s State) bool {
		return hasRow(s.Routes, "254", "10.9.0.0/16", "0", "-", "-", "-", "blackhole", "global")
	})
	require.NoError(t, n.RouteDel(blackhole))
	v.await(t, "no blackhole", func(s State) bool { return !hasRow(s.Routes, "254", "10.9.0.0/16", "*", "*", "*", "*", "*", "*") })

	t.Log("all routes over a device go with it")
	require.NoError(t, n.LinkDel(n.link("eth1")))
	v.await(t, "no route over the device", func(s State) bool {
		return !slices.ContainsFunc(s.Routes, func(r *tables.Route) bool { return r.DeviceIndex == i1 || r.Table == 100 })
	})
}

func TestKernelNeighboursAndBridgeEntries(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	v := n.start()
	require.NoError(t, n.LinkAdd(&vn.Bridge{LinkAttrs: vn.LinkAttrs{Name: "bridge"}}))
	require.NoError(t, n.LinkSetUp(n.link("bridge")))
	n.addVeth("port0", "pod0")
	n.addVeth("port1", "pod1")
	for _, port := range []string{"port0", "port1"} {
		require.NoError(t, n.LinkSetMasterByIndex(n.link(port), n.index("bridge")))
	}
	b, p0, p1 := strconv.Itoa(n.index("bridge")), strconv.Itoa(n.index("port0")), strconv.Itoa(n.index("port1"))
	own := n.link("port0").Attrs().HardwareAddr.String()
	v.await(t, "the port's own entry", func(s State) bool { return hasRow(s.BridgeEntries, b, own, "0", p0, "true", "false") })

	fdb := func(port, mac string) *vn.Neigh {
		m, err := net.ParseMAC(mac)
		require.NoError(t, err)
		return &vn.Neigh{LinkIndex: n.index(port), Family: unix.AF_BRIDGE, State: unix.NUD_NOARP, Flags: unix.NTF_MASTER, HardwareAddr: m}
	}
	require.NoError(t, n.NeighAppend(fdb("port0", "02:00:00:00:00:aa")))
	v.await(t, "an entry", func(s State) bool { return hasRow(s.BridgeEntries, b, "02:00:00:00:00:aa", "0", p0, "false", "true") })
	require.NoError(t, n.NeighSet(fdb("port1", "02:00:00:00:00:aa")))
	v.await(t, "the entry at the other port", func(s State) bool {
		return hasRow(s.BridgeEntries, b, "02:00:00:00:00:aa", "0", p1, "*", "*") && !hasRow(s.BridgeEntries, b, "02:00:00:00:00:aa", "0", p0, "*", "*")
	})
	require.NoError(t, n.NeighDel(fdb("port1", "02:00:00:00:00:aa")))
	v.await(t, "no entry", func(s State) bool { return !hasRow(s.BridgeEntries, b, "02:00:00:00:00:aa", "*", "*", "*", "*") })

	neigh := func(addr, mac string, state int) *vn.Neigh {
		m, err := net.ParseMAC(mac)
		require.NoError(t, err)
		return &vn.Neigh{LinkIndex: n.index("bridge"), State: state, IP: net.ParseIP(addr), HardwareAddr: m}
	}
	require.NoError(t, n.NeighSet(neigh("10.0.0.7", "02:00:00:00:00:07", unix.NUD_PERMANENT)))
	require.NoError(t, n.NeighSet(neigh("fd00::7", "02:00:00:00:00:07", unix.NUD_REACHABLE)))
	v.await(t, "neighbours", func(s State) bool {
		return hasRow(s.Neighbours, b, "10.0.0.7", "02:00:00:00:00:07", "true") && hasRow(s.Neighbours, b, "fd00::7", "02:00:00:00:00:07", "false")
	})

	t.Log("a change of state alone writes nothing")
	before := v.revisions()[3]
	require.NoError(t, n.NeighSet(neigh("fd00::7", "02:00:00:00:00:07", unix.NUD_STALE)))
	require.NoError(t, n.NeighSet(neigh("10.0.0.8", "02:00:00:00:00:08", unix.NUD_PERMANENT))) // comes after
	v.await(t, "the later one", func(s State) bool { return hasRow(s.Neighbours, b, "10.0.0.8", "*", "*") })
	require.Equal(t, before+1, v.revisions()[3])

	require.NoError(t, n.NeighSet(neigh("10.0.0.7", "02:00:00:00:00:77", unix.NUD_PERMANENT)))
	require.NoError(t, n.NeighSet(neigh("fd00::7", "02:00:00:00:00:07", unix.NUD_FAILED)))
	v.await(t, "one changed, one failed", func(s State) bool {
		return hasRow(s.Neighbours, b, "10.0.0.7", "02:00:00:00:00:77", "true") && !hasRow(s.Neighbours, b, "fd00::7", "*", "*")
	})
	require.NoError(t, n.LinkDel(n.link("bridge")))
	v.await(t, "nothing left", func(s State) bool { return len(s.Neighbours) == 0 && len(s.BridgeEntries) == 0 })
}
