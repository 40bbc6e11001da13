// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/cmd/lab"
)

// What leads to a gateway without Sluice.
const (
	kernelDevice   = "peer_vxlan"
	kernelTable    = 100
	kernelPriority = 100
	kernelVNI      = 99
	kernelPort     = 4789
	kernelMTU      = 1450
)

// The two ends of the kernel's overlay.
var (
	kernelNear = netip.MustParsePrefix("10.255.0.1/30")
	kernelFar  = netip.MustParsePrefix("10.255.0.2/30")
)

// kernelGateway leads what a pod sends to the world by a gateway as it is done
// without programs: a rule of policy routing, a VXLAN device, and nftables'
// masquerading at the gateway. Replies take the same way back.
func kernelGateway(pod *lab.Pod, gateway *lab.Node) error {
	node := pod.Node
	if err := addOverlay(node, gateway.IPv4, kernelNear); err != nil {
		return err
	}
	if err := addOverlay(gateway, node.IPv4, kernelFar); err != nil {
		return err
	}
	if err := routeBy(node, lab.WorldIPv4, kernelFar.Addr(), kernelTable); err != nil {
		return err
	}
	rule := vn.NewRule()
	rule.Family, rule.Src, rule.Table, rule.Priority = unix.AF_INET, hostNet(pod.IPv4), kernelTable, kernelPriority
	if err := node.Handle().RuleAdd(rule); err != nil {
		return fmt.Errorf("add rule for %s: %w", pod.IPv4, err)
	}
	if err := routeBy(gateway, netip.PrefixFrom(pod.IPv4, 32), kernelNear.Addr(), unix.RT_TABLE_MAIN); err != nil {
		return err
	}
	// The pod's node must leave alone what the gateway masquerades.
	if err := addToPostrouting(node, append(leavesBy(kernelDevice), &expr.Verdict{Kind: expr.VerdictAccept})); err != nil {
		return err
	}
	return addToPostrouting(gateway, append(append(leavesBy(gateway.EgressDevice()), comesFrom(pod.IPv4)...), &expr.Masq{}))
}

func addOverlay(n *lab.Node, peer netip.Addr, addr netip.Prefix) error {
	err := n.Handle().LinkAdd(&vn.Vxlan{
		LinkAttrs: vn.LinkAttrs{Name: kernelDevice, MTU: kernelMTU},
		VxlanId:   kernelVNI, Port: kernelPort, SrcAddr: net.IP(n.IPv4.AsSlice()), Group: net.IP(peer.AsSlice()),
	})
	if err != nil {
		return fmt.Errorf("add VXLAN to %s: %w", n.Name, err)
	}
	link, err := n.Handle().LinkByName(kernelDevice)
	if err != nil {
		return fmt.Errorf("find VXLAN of %s: %w", n.Name, err)
	}
	if err := n.Handle().LinkSetUp(link); err != nil {
		return fmt.Errorf("set VXLAN of %s up: %w", n.Name, err)
	}
	return n.AddAddress(kernelDevice, addr)
}

func routeBy(n *lab.Node, to netip.Prefix, via netip.Addr, table int) error {
	link, err := n.Handle().LinkByName(kernelDevice)
	if err != nil {
		return fmt.Errorf("find VXLAN of %s: %w", n.Name, err)
	}
	route := &vn.Route{
		LinkIndex: link.Attrs().Index, Gw: via.AsSlice(), Table: table,
		Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)},
	}
	if err := n.Handle().RouteReplace(route); err != nil {
		return fmt.Errorf("add route of %s to %s: %w", n.Name, to, err)
	}
	return nil
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// addToPostrouting puts a rule before those of the lab, which masquerade.
func addToPostrouting(n *lab.Node, rule []expr.Any) error {
	c, err := nftables.New(nftables.WithNetNSFd(n.FD()))
	if err != nil {
		return fmt.Errorf("open nftables of %s: %w", n.Name, err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "cni"}
	c.InsertRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: "postrouting", Table: table}, Exprs: rule})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add rule to nftables of %s: %w", n.Name, err)
	}
	return nil
}

func leavesBy(device string) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, device)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
	}
}

func comesFrom(a netip.Addr) []expr.Any {
	const source = 12 // in the IP header
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()},
	}
}
