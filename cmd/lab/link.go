// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"net/netip"

	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addVeth adds a device whose other end is in another namespace, and sets both up.
func (n *Namespace) addVeth(name string, peer *Namespace, peerName string, mtu int) error {
	err := n.handle.LinkAdd(&vn.Veth{
		LinkAttrs: vn.LinkAttrs{Name: name, MTU: mtu},
		PeerName:  peerName, PeerNamespace: vn.NsFd(peer.FD()), PeerMTU: uint32(mtu),
	})
	if err != nil {
		return fmt.Errorf("add device %s of %s to %s of %s: %w", name, n.Name, peerName, peer.Name, err)
	}
	if err := n.up(name); err != nil {
		return err
	}
	return peer.up(peerName)
}

func (n *Namespace) addBridge(name string, mtu int) error {
	if err := n.handle.LinkAdd(&vn.Bridge{LinkAttrs: vn.LinkAttrs{Name: name, MTU: mtu}}); err != nil {
		return fmt.Errorf("add bridge %s of %s: %w", name, n.Name, err)
	}
	bridge, err := n.link(name)
	if err != nil {
		return err
	}
	// Set, as CNIs do: else it follows the ports, and the bridge floods what neighbors
	// send to the former address.
	if err := n.handle.LinkSetHardwareAddr(bridge, bridge.Attrs().HardwareAddr); err != nil {
		return fmt.Errorf("set address of bridge %s of %s: %w", name, n.Name, err)
	}
	return n.up(name)
}

// plug makes a device a port of a bridge.
func (n *Namespace) plug(device, bridge string) error {
	port, err := n.link(device)
	if err != nil {
		return err
	}
	master, err := n.link(bridge)
	if err != nil {
		return err
	}
	if err := n.handle.LinkSetMaster(port, master); err != nil {
		return fmt.Errorf("plug %s into %s of %s: %w", device, bridge, n.Name, err)
	}
	return nil
}

func (n *Namespace) link(name string) (vn.Link, error) {
	l, err := n.handle.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find device %s of %s: %w", name, n.Name, err)
	}
	return l, nil
}

func (n *Namespace) up(device string) error {
	l, err := n.link(device)
	if err != nil {
		return err
	}
	if err := n.handle.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s of %s up: %w", device, n.Name, err)
	}
	return nil
}

// AddAddress gives a device an address, with the length of its network.
func (n *Namespace) AddAddress(device string, addrs ...netip.Prefix) error {
	return n.changeAddresses((*vn.Handle).AddrReplace, "add", device, addrs)
}

// RemoveAddress takes an address from a device.
func (n *Namespace) RemoveAddress(device string, addrs ...netip.Prefix) error {
	return n.changeAddresses((*vn.Handle).AddrDel, "remove", device, addrs)
}

func (n *Namespace) changeAddresses(change func(*vn.Handle, vn.Link, *vn.Addr) error, verb, device string, addrs []netip.Prefix) error {
	l, err := n.link(device)
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		a := &vn.Addr{IPNet: ipNet(addr)}
		if addr.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := change(n.handle, l, a); err != nil {
			return fmt.Errorf("%s address %s of %s of %s: %w", verb, addr, device, n.Name, err)
		}
	}
	return nil
}

// addRoute adds a route by a device; an invalid next hop means that the
// destination is on its link.
func (n *Namespace) addRoute(to netip.Prefix, via netip.Addr, device string) error {
	l, err := n.link(device)
	if err != nil {
		return err
	}
	r := vn.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(to)}
	switch {
	case !via.IsValid():
		r.Scope = vn.SCOPE_LINK
	case via.Is6() && to.Addr().Is4():
		r.Via = &vn.Via{AddrFamily: unix.AF_INET6, Addr: via.AsSlice()}
	default:
		r.Gw = via.AsSlice()
	}
	return n.replaceRoute(&r)
}

// addSpecialRoute adds a route of a type, such as unix.RTN_LOCAL.
func (n *Namespace) addSpecialRoute(to netip.Prefix, routeType int) error {
	r := vn.Route{Dst: ipNet(to), Type: routeType}
	if routeType == unix.RTN_LOCAL {
		lo, err := n.link("lo")
		if err != nil {
			return err
		}
		r.LinkIndex, r.Scope, r.Table = lo.Attrs().Index, vn.SCOPE_HOST, unix.RT_TABLE_LOCAL
	}
	return n.replaceRoute(&r)
}

func (n *Namespace) replaceRoute(r *vn.Route) error {
	if err := n.handle.RouteReplace(r); err != nil {
		return fmt.Errorf("add route %s of %s: %w", r, n.Name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// host is the prefix of just an address.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
