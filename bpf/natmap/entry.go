// SPDX-License-Identifier: Apache-2.0

package natmap

import (
	"fmt"
	"net/netip"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
)

// Entry4 is the value of sluice_nat4: what the packets' source, or the
// replies' destination, becomes.
type Entry4 struct {
	Created uint64      // when it was made, nanoseconds
	NeedsCT uint32      // 1: goes with its conntrack entry
	Used    uint32      // when it last translated a packet of the pod, coarse, seconds; 0: condemned, as good as absent
	Tunnel  bpf.Address // node that the pod's packets come from; none: the pod is here
	Addr    [4]byte
	Port    ctmap.Port
	Counter uint16 // of its traffic, see [bpf.TrafficKey]; 0: it is not counted
}

// To returns the address and port of the translation.
func (e Entry4) To() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(e.Addr), e.Port.Number())
}

func (e Entry4) String() string { return fmt.Sprintf("to=%s tunnel=%s", e.To(), e.Tunnel) }

// Entry6 is the value of sluice_nat6.
type Entry6 struct {
	Created uint64
	NeedsCT uint32
	Used    uint32
	Tunnel  bpf.Address
	Addr    [16]byte
	Port    ctmap.Port
	Counter uint16
	Pad     [4]byte
}

// To returns the address and port of the translation.
func (e Entry6) To() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(e.Addr), e.Port.Number())
}

func (e Entry6) String() string { return fmt.Sprintf("to=%s tunnel=%s", e.To(), e.Tunnel) }
