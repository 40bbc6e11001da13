// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"fmt"

	"github.com/sluice-net/sluice/bpf"
)

// EntryFlags are the flags of an [Entry].
type EntryFlags uint16

// The flags, at the bits that the reference has them at.
const (
	RxClosing  EntryFlags = 1 << 0 // FIN or RST to the client
	TxClosing  EntryFlags = 1 << 1 // FIN or RST from the client
	SeenNonSYN EntryFlags = 1 << 4 // established, so that the lifetime is the long one
	ToService  EntryFlags = 1 << 9 // where it ends is for the backstop to check
	FromTunnel EntryFlags = 1 << 10
	OfHost     EntryFlags = 1 << 11 // this host itself began it, or went on with it
	OfPod      EntryFlags = 1 << 12 // to a pod of this node, from another one, in whose share it counts
)

var entryFlagNames = map[uint16]string{
	uint16(RxClosing): "rx-closing", uint16(TxClosing): "tx-closing",
	uint16(SeenNonSYN): "seen-non-syn",
	uint16(ToService):  "service", uint16(FromTunnel): "from-tunnel",
	uint16(OfHost): "host", uint16(OfPod): "local-pod",
}

// Names returns the names of the flags that are set.
func (f EntryFlags) Names() []string { return flagNames(uint16(f), entryFlagNames) }

func (f EntryFlags) String() string { return list(f.Names()) }

// Entry is the value of the maps of connections.
type Entry struct {
	Gateway          bpf.Address // that the connection is pinned to; none: it goes its ordinary way
	Packets          uint64
	Bytes            uint64
	Lifetime         uint32 // when it expires, seconds; 0: condemned, as good as absent
	Flags            EntryFlags
	ReverseNATIndex  [2]byte // network order
	IfIndex          uint16
	TxFlagsSeen      uint8 // of TCP
	RxFlagsSeen      uint8
	SourceSecurityID uint32
	LastTxReport     uint32 // seconds
	LastRxReport     uint32
	Generation       uint32 // under which the verdict was made; 0: it has to be made
	Cookie           uint32 // of the rule that allowed it
	Created          uint32 // when it was made, or made anew for another connection; seconds
	Reserved         uint32
}

func (e Entry) String() string {
	return fmt.Sprintf("gateway=%s generation=%d flags=%s packets=%d bytes=%d lifetime=%d",
		e.Gateway, e.Generation, e.Flags, e.Packets, e.Bytes, e.Lifetime)
}

// FragKey4 is the key of sluice_frag4: an IPv4 datagram that came in fragments.
type FragKey4 struct {
	DestAddr   [4]byte
	SourceAddr [4]byte
	ID         [2]byte
	Protocol   uint8
	Pad        uint8
}

// FragKey6 is the key of sluice_frag6.
type FragKey6 struct {
	DestAddr   [16]byte
	SourceAddr [16]byte
	ID         [4]byte
	Protocol   uint8
	Pad        [3]byte
}

// FragValue is the value of the maps of fragments: the ports of the datagram.
type FragValue struct {
	SourcePort Port
	DestPort   Port
}
