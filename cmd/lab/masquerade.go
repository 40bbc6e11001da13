// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Offsets of addresses in IP headers, by family.
var (
	sourceOffset      = map[bool]uint32{false: 12, true: 8}
	destinationOffset = map[bool]uint32{false: 16, true: 24}
)

// masquerade has a node do what CNIs do: what its pods send to the outside leaves
// with the node's address.
func (n *Namespace) masquerade(pods, inside []netip.Prefix) error {
	c, err := nftables.New(nftables.WithNetNSFd(n.FD()))
	if err != nil {
		return fmt.Errorf("open nftables of %s: %w", n.Name, err)
	}
	for _, from := range pods {
		family := nftables.TableFamilyIPv4
		if from.Addr().Is6() {
			family = nftables.TableFamilyIPv6
		}
		table := c.AddTable(&nftables.Table{Family: family, Name: "cni"})
		chain := c.AddChain(&nftables.Chain{
			Name: "postrouting", Table: table,
			Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		rule := within(sourceOffset, from, expr.CmpOpEq)
		for _, to := range inside {
			if to.Addr().Is6() == from.Addr().Is6() {
				rule = append(rule, within(destinationOffset, to, expr.CmpOpNeq)...)
			}
		}
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(rule, &expr.Masq{})})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add masquerading to %s: %w", n.Name, err)
	}
	return nil
}

// within matches an address in a prefix, or outside of it.
func within(offset map[bool]uint32, p netip.Prefix, op expr.CmpOp) []expr.Any {
	size := uint32(p.Addr().BitLen() / 8)
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset[p.Addr().Is6()], Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: ipNet(p).Mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}
