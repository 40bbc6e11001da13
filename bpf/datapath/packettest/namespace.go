// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Devices of a [Node].
const (
	PodDevice      = "pod-a"        // of Addresses.Pod
	OtherPodDevice = "pod-b"        // of Addresses.OtherPod
	UnderlayDevice = "underlay"     // to the other nodes
	EgressDevice   = "egress"       // to what is outside
	OverlayDevice  = "sluice_vxlan" // VXLAN
)

// MACs of what is at the other ends of the devices.
var (
	PodMAC      = MAC{2, 0, 0, 0, 0, 10}
	OtherPodMAC = MAC{2, 0, 0, 0, 0, 11}
	RouterMAC   = MAC{2, 0, 0, 0, 0, 1}
)

// namespace is a network namespace with the devices of a node, because programs
// can redirect only to devices that exist.
type namespace struct {
	ns      netns.NsHandle
	devices map[string]netlink.Link
}

func newNamespace() (*namespace, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := netns.Get()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	ns, err := netns.New()
	if err != nil {
		return nil, fmt.Errorf("make network namespace: %w", err)
	}
	n := &namespace{ns: ns, devices: map[string]netlink.Link{}}
	err = n.configure()
	if back := netns.Set(host); back != nil {
		panic(back) // the thread is not used any more
	}
	if err != nil {
		ns.Close()
		return nil, err
	}
	return n, nil
}

func (n *namespace) close() { n.ns.Close() }

// do runs a function in the namespace.
func (n *namespace) do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := netns.Get()
	if err != nil {
		return err
	}
	defer host.Close()
	if err := netns.Set(n.ns); err != nil {
		return err
	}
	err = f()
	if back := netns.Set(host); back != nil {
		panic(back)
	}
	return err
}

// configure makes the devices; the thread is in the namespace.
func (n *namespace) configure() error {
	for _, parameter := range []string{"ipv4/conf/all/forwarding", "ipv4/conf/default/forwarding", "ipv6/conf/all/forwarding", "ipv6/conf/default/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+parameter, []byte("1"), 0); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, name := range []string{PodDevice, OtherPodDevice, UnderlayDevice, EgressDevice} {
		if err := n.add(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"}); err != nil {
			return err
		}
		peer, err := netlink.LinkByName(name + "-peer")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(peer); err != nil {
			return err
		}
	}
	overlay := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: OverlayDevice, MTU: 1450}, FlowBased: true, Port: 8474}
	if err := n.add(overlay); err != nil {
		return err
	}
	for _, world := range []Addresses{World4, World6} {
		if err := n.address(world); err != nil {
			return err
		}
	}
	return nil
}

func (n *namespace) add(link netlink.Link) error {
	name := link.Attrs().Name
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("add device %s: %w", name, err)
	}
	added, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	n.devices[name] = added
	return netlink.LinkSetUp(added)
}

// address gives the devices the addresses, routes and neighbours of a family.
func (n *namespace) address(w Addresses) error {
	for device, addrs := range map[string][]netip.Addr{UnderlayDevice: {w.NodeIP}, EgressDevice: {w.SharedEgress, w.Egress}} {
		for _, a := range addrs {
			err := netlink.AddrAdd(n.devices[device], &netlink.Addr{IPNet: ipNet(subnet(a)), Flags: unix.IFA_F_NODAD})
			if err != nil {
				return fmt.Errorf("add address %s: %w", a, err)
			}
		}
	}
	neighbours := []struct {
		device string
		addr   netip.Addr
		mac    MAC
	}{
		{PodDevice, w.Pod, PodMAC}, {OtherPodDevice, w.OtherPod, OtherPodMAC}, {EgressDevice, w.Router, RouterMAC},
		{UnderlayDevice, w.SecondNode, RouterMAC}, {UnderlayDevice, w.ThirdNode, RouterMAC},
	}
	for _, neighbour := range neighbours {
		index := n.devices[neighbour.device].Attrs().Index
		if strings.HasPrefix(neighbour.device, "pod") {
			route := &netlink.Route{LinkIndex: index, Dst: ipNet(netip.PrefixFrom(neighbour.addr, neighbour.addr.BitLen())), Scope: netlink.SCOPE_LINK}
			if err := netlink.RouteAdd(route); err != nil {
				return fmt.Errorf("add route to %s: %w", neighbour.addr, err)
			}
		}
		err := netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: neighbour.addr.AsSlice(), HardwareAddr: net.HardwareAddr(neighbour.mac[:]), State: netlink.NUD_PERMANENT})
		if err != nil {
			return fmt.Errorf("add neighbour %s: %w", neighbour.addr, err)
		}
	}
	err := netlink.RouteAdd(&netlink.Route{LinkIndex: n.devices[EgressDevice].Attrs().Index, Gw: w.Router.AsSlice()})
	if err != nil {
		return fmt.Errorf("add default route by %s: %w", w.Router, err)
	}
	return nil
}

func subnet(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(a, 24)
	}
	return netip.PrefixFrom(a, 64)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
