// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// Node is a node of the cluster.
type Node struct {
	*Namespace
	Agent *Agent

	// Addresses inside the cluster; IPv4 is invalid with [Options.IPv6Underlay].
	IPv4, IPv6 netip.Addr
	// What its own traffic to the world comes from, and so that of pods without
	// egress policy.
	OutsideIPv4, OutsideIPv6 netip.Addr
	// Further addresses of the device to the world.
	EgressIPv4, EgressIPv6 netip.Addr

	device   string // to other nodes
	number   int
	cluster  *Cluster
	pods     int // that it ever had
	notReady bool
}

// Internal is the address by which other nodes reach it: of the first family
// that it has inside the cluster.
func (n *Node) Internal() netip.Addr {
	if n.IPv4.IsValid() {
		return n.IPv4
	}
	return n.IPv6
}

// EgressDevice is the device that leads to the world.
func (n *Node) EgressDevice() string {
	if n.cluster.options.SingleInterface {
		return UnderlayDevice
	}
	return OutsideDevice
}

func (c *Cluster) newNode(number int) (*Node, error) {
	ns, err := newNamespace("node-" + strconv.Itoa(number))
	if err != nil {
		return nil, err
	}
	n := &Node{Namespace: ns, number: number, cluster: c, device: UnderlayDevice}
	if n.Agent, err = newAgent(n); err != nil {
		n.close()
		return nil, err
	}
	for _, step := range []func() error{
		n.forward, n.addUnderlay, n.addOutside, n.addPodNetworks, n.translatePods, n.addVPN,
	} {
		if err := step(); err != nil {
			n.close()
			return nil, err
		}
	}
	return n, nil
}

func (n *Node) close() {
	if n.Agent != nil {
		n.Agent.close()
	}
	if n.cluster.options.vpn != nil {
		n.cluster.options.vpn.remove(n)
	}
	n.Namespace.Close()
}

// forward makes a router of the node. It checks reverse paths strictly, as many
// distributions do.
func (n *Node) forward() error {
	return n.Sysctl("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.default.forwarding=1",
		"net.ipv4.conf.default.rp_filter=1")
}

func (n *Node) addUnderlay() error {
	if err := n.cluster.connect(n.Namespace, UnderlayDevice, switchBridge); err != nil {
		return err
	}
	v4, v6 := inNetwork(UnderlayIPv4, nodeHosts+n.number), inNetwork(UnderlayIPv6, nodeHosts+n.number)
	n.IPv6 = v6.Addr()
	addresses := []netip.Prefix{v6}
	if !n.cluster.options.IPv6Underlay {
		n.IPv4 = v4.Addr()
		addresses = append(addresses, v4)
	}
	if n.EgressDevice() == UnderlayDevice {
		return nil // it gets its addresses by addOutside
	}
	return n.AddAddress(UnderlayDevice, addresses...)
}

// addOutside connects the node with the world.
func (n *Node) addOutside() error {
	net4, net6 := n.cluster.worldNetworks()
	device := n.EgressDevice()
	v4, v6 := inNetwork(net4, nodeHosts+n.number), inNetwork(net6, nodeHosts+n.number)
	n.OutsideIPv4, n.OutsideIPv6 = v4.Addr(), v6.Addr()
	if device != UnderlayDevice {
		if err := n.cluster.connect(n.Namespace, device, outsideBridge); err != nil {
			return err
		}
	}
	n.EgressIPv4, n.EgressIPv6 = hostOf(net4, egressHosts+n.number), hostOf(net6, egressHosts+n.number)
	// In this order: of IPv4 addresses the first that was added is preferred as a
	// source, and of IPv6 addresses the last.
	if err := n.AddAddress(device, v4, host(n.EgressIPv4), host(n.EgressIPv6), v6); err != nil {
		return err
	}
	for _, router := range []netip.Addr{hostOf(net4, routerHost), hostOf(net6, routerHost)} {
		if err := n.addRoute(anywhere(router.Is6()), router, device); err != nil {
			return err
		}
	}
	return nil
}

// addPodNetworks has what comes for a pod that does not exist end here: on the
// bridge, or nowhere.
func (n *Node) addPodNetworks() error {
	v4, v6 := podNetworks(n.number)
	if n.cluster.options.BridgeCNI {
		if err := n.addBridge(bridgeDevice, n.cluster.options.MTU); err != nil {
			return err
		}
		return n.AddAddress(bridgeDevice, inNetwork(v4, routerHost), inNetwork(v6, routerHost))
	}
	for _, p := range []netip.Prefix{v4, v6} {
		if err := n.addSpecialRoute(p, unix.RTN_BLACKHOLE); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) translatePods() error {
	v4, v6 := podNetworks(n.number)
	inside := []netip.Prefix{PodsIPv4, PodsIPv6}
	if !n.cluster.options.MasqueradeNodes {
		inside = append(inside, UnderlayIPv4, UnderlayIPv6)
	}
	return n.masquerade([]netip.Prefix{v4, v6}, inside)
}

func (n *Node) addVPN() (err error) {
	if n.cluster.options.vpn != nil {
		n.device, err = n.cluster.options.vpn.add(n)
	}
	return err
}

// routeToPeers adds the routes to the pods of other nodes.
func (n *Node) routeToPeers(nodes []*Node) error {
	for _, peer := range nodes {
		if peer == n {
			continue
		}
		v4, v6 := podNetworks(peer.number)
		if err := n.addRoute(v4, peer.Internal(), n.device); err != nil {
			return err
		}
		if err := n.addRoute(v6, peer.IPv6, n.device); err != nil {
			return err
		}
	}
	return nil
}

// Object is the node's manifest.
func (n *Node) Object() Object {
	var addresses []any
	for _, a := range []netip.Addr{n.IPv4, n.IPv6} {
		if a.IsValid() {
			addresses = append(addresses, map[string]any{"type": "InternalIP", "address": a.String()})
		}
	}
	v4, v6 := podNetworks(n.number)
	ready := "True"
	if n.notReady {
		ready = "False"
	}
	return Object{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": n.Name, "labels": map[string]any{"kubernetes.io/hostname": n.Name}},
		"spec":     map[string]any{"podCIDRs": []any{v4.String(), v6.String()}},
		"status": map[string]any{
			"addresses":  addresses,
			"conditions": []any{map[string]any{"type": "Ready", "status": ready}},
		},
	}
}

// SetReady marks the node ready or not ready.
func (n *Node) SetReady(ready bool) error {
	n.notReady = !ready
	if err := n.cluster.Apply(n.Object()); err != nil {
		return fmt.Errorf("mark node %s: %w", n.Name, err)
	}
	return nil
}
