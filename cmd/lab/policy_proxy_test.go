// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// translation is what kube-proxy does with connections to an address and port, over
// TCP and UDP.
type translation struct {
	from, to   netip.AddrPort
	masquerade bool // the backend sees the node's address
}

// masqueradeMark is the bit by which kube-proxy knows what to masquerade.
const masqueradeMark = 0x4000

// translate has the node translate as kube-proxy does, and as nothing else.
func (n *Namespace) translate(all ...translation) error {
	c, err := nftables.New(nftables.WithNetNSFd(n.FD()))
	if err != nil {
		return fmt.Errorf("open nftables of %s: %w", n.Name, err)
	}
	for family, v6 := range map[nftables.TableFamily]bool{nftables.TableFamilyIPv4: false, nftables.TableFamilyIPv6: true} {
		c.AddTable(&nftables.Table{Family: family, Name: "kube-proxy"})
		c.DelTable(&nftables.Table{Family: family, Name: "kube-proxy"}) // of a former call
		table := c.AddTable(&nftables.Table{Family: family, Name: "kube-proxy"})
		for name, hook := range map[string]*nftables.ChainHook{
			"prerouting": nftables.ChainHookPrerouting, "output": nftables.ChainHookOutput,
		} {
			chain := c.AddChain(&nftables.Chain{
				Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityNATDest,
			})
			for _, t := range all {
				if t.from.Addr().Is6() != v6 {
					continue
				}
				for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
					c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: t.rule(protocol)})
				}
			}
		}
		post := c.AddChain(&nftables.Chain{
			Name: "postrouting", Table: table,
			Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			markBits(masqueradeMark, 0),
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(masqueradeMark)},
			&expr.Masq{},
		}})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("translate services on %s: %w", n.Name, err)
	}
	return nil
}

// markBits keeps bits of register 1 and flips others.
func markBits(keep, flip uint32) expr.Any {
	return &expr.Bitwise{
		SourceRegister: 1, DestRegister: 1, Len: 4,
		Mask: binaryutil.NativeEndian.PutUint32(keep), Xor: binaryutil.NativeEndian.PutUint32(flip),
	}
}

func (t translation) rule(protocol byte) []expr.Any {
	family := uint32(unix.NFPROTO_IPV4)
	if t.to.Addr().Is6() {
		family = unix.NFPROTO_IPV6
	}
	rule := within(destinationOffset, host(t.from.Addr()), expr.CmpOpEq)
	rule = append(rule,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: bigEndianPort(t.from.Port())},
	)
	if t.masquerade {
		rule = append(rule,
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
			markBits(^uint32(masqueradeMark), masqueradeMark),
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
		)
	}
	return append(rule,
		&expr.Immediate{Register: 1, Data: t.to.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: bigEndianPort(t.to.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: 2},
	)
}

func bigEndianPort(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }
