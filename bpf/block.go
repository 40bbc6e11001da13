// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"strings"
)

// How many entries there may be of egress addresses that move, and of blocks of their ports.
const (
	BlockEntries = 4096
	OwnerEntries = 1 << 17
)

// BlockPortMin is the first port of block 0 of an egress address that moves.
const BlockPortMin = 1024

// BlockFlags are flags of a [BlockValue].
type BlockFlags uint16

// BlockFixed is of an address that a node has by others: it does not move.
const BlockFixed BlockFlags = 1 << 0

// BlockValue is the value of sluice_blocks, whose key is an [ExitKey]: an egress address that moves
// between nodes, or is fixed. The nodes of pods translate to it by ports of their own, and send
// what they have translated to the gateway.
type BlockValue struct {
	Gateway Address                     // underlay address of the node that has it; none: no node has
	Ports   [SharedPortRanges]PortRange // of this node, which its pods may get
	Size    uint32                      // ports of a block
	Closed  uint16                      // so many of Ports, the last ones, are for no new flows
	Flags   BlockFlags
}

// NewPorts returns the ranges of which new flows may get ports.
func (v *BlockValue) NewPorts() []PortRange {
	return v.Ports[:SharedPortRanges-min(v.Closed, SharedPortRanges)]
}

func (v BlockValue) String() string {
	var ports []string
	for _, r := range v.Ports {
		if r.Last != 0 {
			ports = append(ports, fmt.Sprintf("%d-%d", r.First, r.Last))
		}
	}
	text := fmt.Sprintf("gateway=%s ports=%s size=%d", v.Gateway, strings.Join(ports, ","), v.Size)
	if v.Closed > 0 {
		text += fmt.Sprintf(" closed=%d", v.Closed)
	}
	if v.Flags&BlockFixed != 0 {
		text += " fixed"
	}
	return text
}

// OwnerKey is the key of sluice_owners: a block of ports of an egress address.
type OwnerKey struct {
	Egress Address
	Block  uint32
	Pad    uint32
}

func (k OwnerKey) String() string { return fmt.Sprintf("%s block %d", k.Egress, k.Block) }

// OwnerValue is the value of sluice_owners: the node that has the block.
type OwnerValue struct {
	Node Address // its underlay address
}

func (v OwnerValue) String() string { return v.Node.String() }
