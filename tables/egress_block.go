// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/sluice-net/sluice/bpf"
)

// EgressBlock is an egress address of a pool, as this node sends traffic by it: with which ports,
// and to which node. An entry of sluice_blocks.
type EgressBlock struct {
	Addr    netip.Addr `json:"addr"`
	Pool    string     `json:"pool"`
	Node    string     `json:"node,omitempty"`   // that shall have the address; empty: none
	Gateway netip.Addr `json:"gateway,omitzero"` // underlay address of the node
	Fixed   bool       `json:"fixed,omitempty"`  // it does not move: see [EgressIP]

	// Ports are those that pods of this node leave with: its blocks, as far as there is room.
	Ports  [bpf.SharedPortRanges]bpf.PortRange `json:"ports"`
	Closed int                                 `json:"closed,omitempty"` // see [bpf.BlockValue]
	Size   int                                 `json:"size"`             // ports of a block

	Reason string `json:"reason,omitempty"` // why there is no node, or why there are no ports

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (b *EgressBlock) Equal(o *EgressBlock) bool { return sameButStatus(b, o) }

// IsClosed reports whether a port is of a block that this node gives back.
func (b *EgressBlock) IsClosed(port uint16) bool {
	return slices.ContainsFunc(b.Ports[len(b.Ports)-b.Closed:], func(r bpf.PortRange) bool {
		return r.First <= port && port <= r.Last
	})
}

// MapKey is the key in sluice_blocks.
func (b *EgressBlock) MapKey() bpf.ExitKey { return bpf.ExitKey{Addr: bpf.AddressFrom(b.Addr)} }

// MapValue is the value in sluice_blocks.
func (b *EgressBlock) MapValue() bpf.BlockValue {
	v := bpf.BlockValue{
		Gateway: bpf.AddressFrom(b.Gateway), Ports: b.Ports, Closed: uint16(b.Closed),
		Size: uint32(b.Size),
	}
	if b.Fixed {
		v.Flags = bpf.BlockFixed
	}
	return v
}

// TableHeader implements [statedb.TableWritable].
func (*EgressBlock) TableHeader() []string {
	return []string{"Address", "Pool", "Node", "Gateway", "Ports", "Reason", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (b *EgressBlock) TableRow() []string {
	var ports []string
	for i, r := range b.Ports {
		if r == (bpf.PortRange{}) {
			continue
		}
		text := strconv.Itoa(int(r.First)) + "-" + strconv.Itoa(int(r.Last))
		if i >= len(b.Ports)-b.Closed {
			text += " closed"
		}
		ports = append(ports, text)
	}
	return []string{
		b.Addr.String(), b.Pool, orDash(b.Node), addrColumn(b.Gateway), listColumn(ports, ", "),
		orDash(b.Reason), b.Status.Kind.String(), orDash(b.Status.GetError()),
	}
}

var (
	egressBlockAddrIndex = UniqueIndex("addr", AddrKeys,
		func(b *EgressBlock) netip.Addr { return b.Addr })

	// EgressBlockByAddr queries how this node sends traffic by an egress address of a pool.
	EgressBlockByAddr = egressBlockAddrIndex.Query
)

// NewEgressBlockTable creates the table of egress addresses of pools, as this node uses them.
var NewEgressBlockTable = Declare("egress-blocks", egressBlockAddrIndex)
