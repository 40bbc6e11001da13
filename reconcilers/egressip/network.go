// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

const (
	// How often a new address is asked for before it is used, and how long for an answer.
	probes    = 3
	probeWait = 100 * time.Millisecond
)

var (
	noMAC    = make(net.HardwareAddr, 6)
	allNodes = netip.MustParseAddr("ff02::1")
)

// listTries is how often addresses are listed while others change them.
const listTries = 5

// devices returns the interface index of the device that has an address, for all addresses.
func devices() (map[netip.Addr]int, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	for try := 1; try < listTries && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		addrs, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
	}
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	devices := map[netip.Addr]int{}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			devices[addr.Unmap()] = a.LinkIndex
		}
	}
	return devices, nil
}

// deviceOf returns the interface index of the device that has an address, 0 if none has.
func deviceOf(addr netip.Addr) (int, error) {
	devices, err := devices()
	return devices[addr], err
}

// host is an address as the kernel takes it: alone, without a route, a check for duplicates that
// would delay it, or connections of the host's own that would prefer it.
func host(addr netip.Addr, device int) *netlink.Addr {
	return &netlink.Addr{
		IPNet:     &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())},
		Flags:     unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE,
		LinkIndex: device, ValidLft: math.MaxUint32, PreferedLft: 0,
	}
}

// assign gives an address to a device. It is no error that the device has it.
func assign(addr netip.Addr, device int) error {
	err := netlink.AddrAdd(nil, host(addr, device))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to device %d: %w", addr, device, err)
	}
	return nil
}

// remove takes an address from whatever device has it.
func remove(addr netip.Addr) error {
	device, err := deviceOf(addr)
	if err != nil || device == 0 {
		return err
	}
	err = netlink.AddrDel(nil, host(addr, device))
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove address %s from device %d: %w", addr, device, err)
	}
	return nil
}

// probe returns an error if another host on the device's link has an address, or if it cannot be
// found out.
func probe(ctx context.Context, addr netip.Addr, device int) error {
	ifi, err := net.InterfaceByIndex(device)
	if err != nil {
		return fmt.Errorf("find device %d: %w", device, err)
	}
	ask := probe6
	if addr.Is4() {
		ask = probe4
	}
	for range probes {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		owner, err := ask(ifi, addr)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // silence
		case err != nil:
			return fmt.Errorf("ask on %s for the owner of %s: %w", ifi.Name, addr, err)
		default:
			return fmt.Errorf("%s is in use by %s on %s", addr, owner, ifi.Name)
		}
	}
	return nil
}

// probe4 asks once and returns the answer. Without one it is a [os.ErrDeadlineExceeded].
func probe4(ifi *net.Interface, addr netip.Addr) (net.HardwareAddr, error) {
	c, err := arp.Dial(ifi)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(probeWait)); err != nil {
		return nil, err
	}
	if err := askFor(c, addr); err != nil {
		return nil, err
	}
	for {
		p, _, err := c.Read()
		if err != nil {
			return nil, err
		}
		if p.SenderIP == addr && p.SenderHardwareAddr.String() != ifi.HardwareAddr.String() {
			return p.SenderHardwareAddr, nil
		}
	}
}

func askFor(c *arp.Client, addr netip.Addr) error {
	p, err := arp.NewPacket(
		arp.OperationRequest, c.HardwareAddr(), netip.IPv4Unspecified(), noMAC, addr)
	if err != nil {
		return err
	}
	return c.WriteTo(p, ethernet.Broadcast)
}

// probe6 is [probe4] for IPv6.
func probe6(ifi *net.Interface, addr netip.Addr) (net.HardwareAddr, error) {
	c, _, err := ndp.Listen(ifi, ndp.LinkLocal)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(probeWait)); err != nil {
		return nil, err
	}
	group, err := ndp.SolicitedNodeMulticast(addr)
	if err != nil {
		return nil, err
	}
	solicitation := &ndp.NeighborSolicitation{TargetAddress: addr, Options: linkLayer(ndp.Source, ifi)}
	if err := c.WriteTo(solicitation, nil, group); err != nil {
		return nil, err
	}
	for {
		m, _, from, err := c.ReadFrom()
		if err != nil {
			return nil, err
		}
		na, ok := m.(*ndp.NeighborAdvertisement)
		if !ok || na.TargetAddress != addr {
			continue
		}
		for _, option := range na.Options {
			if l, ok := option.(*ndp.LinkLayerAddress); ok {
				return l.Addr, nil
			}
		}
		return nil, fmt.Errorf("%s is in use by %s", addr, from)
	}
}

func linkLayer(direction ndp.Direction, ifi *net.Interface) []ndp.Option {
	return []ndp.Option{&ndp.LinkLayerAddress{Direction: direction, Addr: ifi.HardwareAddr}}
}

// announcements announces addresses. It has one packet socket for all of them: it takes
// milliseconds to close one, as the kernel waits for all packets under way.
type announcements struct{ packets *int }

// announce tells all on the device's link that this node has an address. The device is one of the
// table: to ask for it waits for all others that configure the network of the machine.
func (a *announcements) announce(addr netip.Addr, device *tables.Device) error {
	mac, err := net.ParseMAC(device.MAC)
	ifi := &net.Interface{Index: device.Index, Name: device.Name, HardwareAddr: mac}
	if err == nil && addr.Is4() {
		err = a.announce4(ifi, addr)
	} else if err == nil {
		err = announce6(ifi, addr)
	}
	if err != nil {
		return fmt.Errorf("announce %s at device %d: %w", addr, device.Index, err)
	}
	return nil
}

func (a *announcements) announce4(ifi *net.Interface, addr netip.Addr) error {
	if a.packets == nil {
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // takes nothing
		if err != nil {
			return fmt.Errorf("open a packet socket: %w", err)
		}
		a.packets = &socket
	}
	p, err := arp.NewPacket(arp.OperationRequest, ifi.HardwareAddr, addr, noMAC, addr)
	if err != nil {
		return err
	}
	payload, err := p.MarshalBinary()
	if err != nil {
		return err
	}
	frame, err := (&ethernet.Frame{
		Destination: ethernet.Broadcast, Source: ifi.HardwareAddr, EtherType: ethernet.EtherTypeARP,
		Payload: payload,
	}).MarshalBinary()
	if err != nil {
		return err
	}
	return unix.Sendto(*a.packets, frame, 0, &unix.SockaddrLinklayer{
		Protocol: binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ARP)),
		Ifindex:  ifi.Index,
	})
}

func (a *announcements) close() {
	if a.packets != nil {
		unix.Close(*a.packets)
		a.packets = nil
	}
}

func announce6(ifi *net.Interface, addr netip.Addr) error {
	c, _, err := ndp.Listen(ifi, ndp.LinkLocal)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.WriteTo(&ndp.NeighborAdvertisement{
		Override: true, TargetAddress: addr, Options: linkLayer(ndp.Target, ifi),
	}, nil, allNodes)
}

// Cleanup takes the addresses from the node that an agent has left there, and returns them.
func Cleanup(bpffs string) (removed []string, err error) {
	addrs, err := bpf.PinnedVotes(bpffs)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, addr := range addrs {
		device, err := deviceOf(addr)
		if err == nil && device != 0 {
			if err = remove(addr); err == nil {
				removed = append(removed, addr.String())
			}
		}
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}
