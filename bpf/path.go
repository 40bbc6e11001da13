// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// PathsMap is the name of the map of the nodes that the agent probes (programs/probe.h). Its key
// is a [NodeKey], its value a [PathValue].
const PathsMap = "sluice_paths"

// PathValue says when there were packets of a node, in time since boot; 0: not yet.
type PathValue struct {
	Sent     time.Duration // a packet of a flow to it
	Seen     time.Duration // one that is proven to come from it
	Answered time.Duration // its answer to a probe
	Answers  uint64        // how many of these there were

	// Nonces of the last answers, each at its number modulo their count.
	Nonces [PathNonces]uint64

	Clock      uint64 // the time there, of its last answer to votes: see [VotesFrame]
	ClockNonce uint64 // of the votes that it answered

	Told uint64 // number of its last message about which addresses it has: see [OwnerFrame]
}

// PathNonces is how many answers the programs keep the nonces of.
const PathNonces = 4

// EtherTypeProbe is the type of the Ethernet frames that are probes and answers: the one for
// local experiments of IEEE 802.
const EtherTypeProbe = 0x88b5

// ProbeKind is what a frame of type [EtherTypeProbe] is.
type ProbeKind uint8

// The kinds of frames. They are where packets of flows have their [Direction].
const (
	ProbeRequest ProbeKind = 3
	ProbeAnswer  ProbeKind = 4
)

// ProbeFrame returns the frame, inside the overlay packet, of a probe or an answer from one node
// to another. The nonce is greater than those of probes before.
func ProbeFrame(key OverlayKey, kind ProbeKind, from, to netip.Addr, nonce uint64) []byte {
	return frame(key, kind, from, to, binary.NativeEndian.AppendUint64(nil, nonce))
}
