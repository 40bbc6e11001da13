// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"golang.org/x/crypto/curve25519"
)

const (
	wireGuardDevice   = "wg0" // has no link layer
	wireGuardPort     = 51820
	wireGuardOverhead = 80 // of the outer packet, by IPv6
)

// Networks of the WireGuard devices.
var (
	wireGuardIPv4 = netip.MustParsePrefix("192.168.60.0/24")
	wireGuardIPv6 = netip.MustParsePrefix("fd00:60::/64")
)

// wireGuard is a network of WireGuard devices. This process encrypts, as the kernel may have no
// WireGuard.
type wireGuard struct {
	devices   map[*Node]*device.Device
	endpoints map[*Node]netip.AddrPort
}

func newWireGuard() *wireGuard {
	return &wireGuard{map[*Node]*device.Device{}, map[*Node]netip.AddrPort{}}
}

func (w *wireGuard) add(n *Node) (name string, err error) {
	err = n.Run(func() error {
		link, err := tun.CreateTUN(wireGuardDevice, n.cluster.options.MTU-wireGuardOverhead)
		if err != nil {
			return err
		}
		bind := &bindInside{conn.NewStdNetBind(), n.Namespace}
		d := device.NewDevice(link, bind, device.NewLogger(device.LogLevelSilent, ""))
		w.devices[n] = d
		if err := d.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\n",
			hex.EncodeToString(privateKey(n)), wireGuardPort)); err != nil {
			return err
		}
		return d.Up()
	})
	if err != nil {
		return "", fmt.Errorf("make WireGuard device of %s: %w", n.Name, err)
	}
	if err := n.up(wireGuardDevice); err != nil {
		return "", err
	}
	w.endpoints[n] = netip.AddrPortFrom(n.Internal(), wireGuardPort)
	v4 := inNetwork(wireGuardIPv4, nodeHosts+n.number)
	v6 := inNetwork(wireGuardIPv6, nodeHosts+n.number)
	n.IPv4, n.IPv6 = v4.Addr(), v6.Addr()
	return wireGuardDevice, n.AddAddress(wireGuardDevice, v4, v6)
}

func (w *wireGuard) connect(n *Node, nodes []*Node) error {
	var config strings.Builder
	for _, peer := range nodes {
		if peer == n {
			continue
		}
		public, err := curve25519.X25519(privateKey(peer), curve25519.Basepoint)
		if err != nil {
			return fmt.Errorf("compute public key of %s: %w", peer.Name, err)
		}
		fmt.Fprintf(&config, "public_key=%s\nendpoint=%s\n",
			hex.EncodeToString(public), w.endpoints[peer])
		v4, v6 := podNetworks(peer.number)
		for _, p := range []netip.Prefix{host(peer.IPv4), host(peer.IPv6), v4, v6} {
			fmt.Fprintf(&config, "allowed_ip=%s\n", p)
		}
	}
	if err := w.devices[n].IpcSet(config.String()); err != nil {
		return fmt.Errorf("set WireGuard peers of %s: %w", n.Name, err)
	}
	return nil
}

func (w *wireGuard) remove(n *Node) {
	if d := w.devices[n]; d != nil {
		d.Close()
	}
}

// privateKey is one for tests.
func privateKey(n *Node) []byte {
	key := make([]byte, curve25519.ScalarSize)
	copy(key, n.Name)
	return key
}

// bindInside opens its sockets in a namespace.
type bindInside struct {
	conn.Bind
	ns *Namespace
}

// Open implements [conn.Bind].
func (b *bindInside) Open(port uint16) (receive []conn.ReceiveFunc, actual uint16, err error) {
	err = b.ns.Run(func() (err error) {
		receive, actual, err = b.Bind.Open(port)
		return err
	})
	return receive, actual, err
}
