// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The network that the agent sees: that of a node with two ways out, and one
// pod that a CNI has connected.
const (
	uplink    = "uplink0" // has the default routes, the node's addresses and two that can be egress IPs
	second    = "second0"
	secondAlt = "second-with-an-alternative-name"
	podDevice = "pod0" // leads to localPod
)

var (
	nodeIPv4  = netip.MustParseAddr("192.168.7.1")
	nodeIPv6  = netip.MustParseAddr("2001:db8:7::1")
	egressIP  = netip.MustParseAddr("192.168.7.50")
	egressIP6 = netip.MustParseAddr("2001:db8:7::50")
	secondIP  = netip.MustParseAddr("192.168.8.1")
	localPod  = netip.MustParseAddr("10.1.0.10")
	podMAC    = net.HardwareAddr{2, 0, 0, 0, 0, 10}
)

func setUpNetwork() error {
	for _, name := range []string{"lo", uplink, second, podDevice} {
		if err := addDevice(name); err != nil {
			return fmt.Errorf("add device %s: %w", name, err)
		}
	}
	for _, a := range []struct {
		device, addr string
	}{
		{uplink, nodeIPv4.String() + "/24"}, {uplink, nodeIPv6.String() + "/64"},
		{uplink, egressIP.String() + "/32"}, {uplink, egressIP6.String() + "/128"},
		{second, secondIP.String() + "/24"},
	} {
		if err := changeAddress(netlink.AddrReplace, a.device, a.addr); err != nil {
			return err
		}
	}
	for _, gateway := range []string{"192.168.7.254", "2001:db8:7::fe"} {
		if err := addRoute(&netlink.Route{Gw: net.ParseIP(gateway)}, uplink); err != nil {
			return err
		}
	}
	return connectPod()
}

// addDevice adds a device, unless it is the loopback, and sets it up.
func addDevice(name string) error {
	if name != "lo" {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-far"}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		far, err := netlink.LinkByName(veth.PeerName)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(far); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if name == second {
		if err := netlink.LinkAddAltName(link, secondAlt); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

func changeAddress(change func(netlink.Link, *netlink.Addr) error, device, addr string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find %s: %w", device, err)
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		return err
	}
	a.Flags = unix.IFA_F_NODAD
	if err := change(link, a); err != nil {
		return fmt.Errorf("change address %s of %s: %w", addr, device, err)
	}
	return nil
}

func addRoute(route *netlink.Route, device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find %s: %w", device, err)
	}
	route.LinkIndex = link.Attrs().Index
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add route %s: %w", route, err)
	}
	return nil
}

// connectPod does what a CNI does for localPod: a route to its address by a
// device of its own, and the MAC address behind.
func connectPod() error {
	dst := &net.IPNet{IP: localPod.AsSlice(), Mask: net.CIDRMask(32, 32)}
	if err := addRoute(&netlink.Route{Dst: dst, Scope: netlink.SCOPE_LINK}, podDevice); err != nil {
		return err
	}
	link, err := netlink.LinkByName(podDevice)
	if err != nil {
		return err
	}
	return netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, IP: localPod.AsSlice(), HardwareAddr: podMAC, State: netlink.NUD_PERMANENT,
	})
}

// reversePathFilter reads a device's kernel parameter rp_filter.
func reversePathFilter(t *testing.T, device string) string {
	t.Helper()
	value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + device + "/rp_filter")
	require.NoError(t, err)
	return string(value[:len(value)-1])
}

func setReversePathFilter(t *testing.T, device, value string) {
	t.Helper()
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+device+"/rp_filter", []byte(value), 0o644))
}

// network is what the kernel says of the node's network.
type network struct {
	devices []device
	local   map[netip.Prefix]string // type of each route of the table "local"
	main    []route
	sources map[netip.Addr]bool // that routes prefer
	macs    map[macKey]net.HardwareAddr
}

type device struct {
	index int
	names []string
	addrs []address // in the kernel's order
}

type address struct {
	netip.Addr
	global bool
}

type route struct {
	destination netip.Prefix
	device      int
	priority    int
}

type macKey struct {
	addr   netip.Addr
	device int
}

func loadNetwork() (*network, error) {
	n := &network{local: map[netip.Prefix]string{}, sources: map[netip.Addr]bool{}, macs: map[macKey]net.HardwareAddr{}}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		d := device{index: l.Attrs().Index, names: append([]string{l.Attrs().Name}, l.Attrs().AltNames...)}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("list addresses: %w", err)
		}
		for _, a := range addrs {
			if a.Flags&unix.IFA_F_TENTATIVE == 0 {
				ip, _ := netip.AddrFromSlice(a.IP)
				d.addrs = append(d.addrs, address{ip.Unmap(), a.Scope == int(netlink.SCOPE_UNIVERSE)})
			}
		}
		n.devices = append(n.devices, d)
	}
	if err := n.loadRoutes(); err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	neighbours, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, neighbour := range neighbours {
		if addr, ok := netip.AddrFromSlice(neighbour.IP); ok && len(neighbour.HardwareAddr) == 6 {
			n.macs[macKey{addr.Unmap(), neighbour.LinkIndex}] = neighbour.HardwareAddr
		}
	}
	return n, nil
}

func (n *network) loadRoutes() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		for _, table := range []int{unix.RT_TABLE_LOCAL, unix.RT_TABLE_MAIN} {
			routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
			if err != nil {
				return err
			}
			for _, r := range routes {
				destination := prefixOf(r.Dst, family)
				switch {
				case table == unix.RT_TABLE_LOCAL:
					n.local[destination] = routeTypes[r.Type]
				case r.Type == unix.RTN_UNICAST:
					n.main = append(n.main, route{destination, r.LinkIndex, r.Priority})
				}
				if source, ok := netip.AddrFromSlice(r.Src); ok && table == unix.RT_TABLE_MAIN {
					n.sources[source.Unmap()] = true
				}
			}
		}
	}
	return nil
}

var routeTypes = map[int]string{
	unix.RTN_LOCAL: "local", unix.RTN_ANYCAST: "anycast", unix.RTN_BROADCAST: "broadcast", unix.RTN_MULTICAST: "multicast",
}

// prefixOf is the prefix of a destination, of which nil is everything.
func prefixOf(n *net.IPNet, family int) netip.Prefix {
	switch {
	case n != nil:
		addr, _ := netip.AddrFromSlice(n.IP)
		bits, _ := n.Mask.Size()
		if family == netlink.FAMILY_V4 {
			addr = addr.Unmap()
		}
		return netip.PrefixFrom(addr, bits)
	case family == netlink.FAMILY_V4:
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	default:
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
}
