// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// AnyPeerClass is the peer class of the entries of sluice_policy that apply
// whatever the peer is. It is also the class of peers that no selector chooses.
const AnyPeerClass uint32 = 0

// NoSubjectClass is the subject class of pods that no policy chooses: all is
// allowed to them.
const NoSubjectClass uint32 = 0

// Prefix lengths of a [PolicyKey] whose port or protocol does not matter.
const (
	policyBitsDirection uint32 = 32 + 32 + 8
	policyBitsProtocol  uint32 = policyBitsDirection + 8
	policyBitsPort      uint32 = policyBitsProtocol + 16
)

// PolicyKey is the key of sluice_policy, a longest-prefix-match map. A packet is
// looked up by its peer's class and by [AnyPeerClass]; of what both find, the
// higher precedence decides.
type PolicyKey struct {
	PrefixLen uint32 // bits of what follows that count: 72 for any traffic, 80 for a protocol, then those of the port
	Subject   uint32 // class of the pod
	Peer      uint32 // class of the other side, or AnyPeerClass
	Direction Direction
	Protocol  uint8   // IP protocol number
	Port      [2]byte // of the destination, in network order; of ICMP the type
}

// PolicyKeyOf returns the key of traffic to the ports that have the first bits
// of a port in common; protocol 0 is any protocol.
func PolicyKeyOf(subject, peer uint32, direction Direction, protocol uint8, port uint16, bits int) PolicyKey {
	k := PolicyKey{PrefixLen: policyBitsDirection, Subject: subject, Peer: peer, Direction: direction}
	if protocol != 0 {
		k.PrefixLen, k.Protocol = policyBitsProtocol+uint32(bits), protocol
		binary.BigEndian.PutUint16(k.Port[:], port&^(1<<(16-bits)-1))
	}
	return k
}

// PortBits returns how many bits of the port count.
func (k PolicyKey) PortBits() int {
	return int(max(k.PrefixLen, policyBitsProtocol) - policyBitsProtocol)
}

// AnyProtocol reports whether the protocol does not matter.
func (k PolicyKey) AnyProtocol() bool { return k.PrefixLen < policyBitsProtocol }

// Ports returns the first and the last port of the key.
func (k PolicyKey) Ports() (first, last uint16) {
	first = binary.BigEndian.Uint16(k.Port[:])
	return first, first | uint16(1<<(16-k.PortBits())-1)
}

// Covers reports whether all traffic of another key is that of k, of the same
// classes and direction.
func (k PolicyKey) Covers(o PolicyKey) bool {
	if k.Subject != o.Subject || k.Peer != o.Peer || k.Direction != o.Direction || k.PrefixLen > o.PrefixLen {
		return false
	}
	first, last := k.Ports()
	port := binary.BigEndian.Uint16(o.Port[:])
	return k.AnyProtocol() || k.Protocol == o.Protocol && first <= port && port <= last
}

func (k PolicyKey) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "subject=%d peer=%d %s ", k.Subject, k.Peer, k.Direction)
	first, last := k.Ports()
	switch {
	case k.AnyProtocol():
		b.WriteString("any")
	case k.PortBits() == 0:
		fmt.Fprintf(&b, "protocol=%d", k.Protocol)
	case first == last:
		fmt.Fprintf(&b, "protocol=%d port=%d", k.Protocol, first)
	default:
		fmt.Fprintf(&b, "protocol=%d port=%d-%d", k.Protocol, first, last)
	}
	return b.String()
}

// Precedences of verdicts: a higher one decides.
const (
	PrecedenceDefault uint32 = iota // what is decided where no rule says anything
	PrecedenceAllow
	PrecedenceDeny
)

// PolicyValue is the value of sluice_policy.
type PolicyValue struct {
	Precedence uint32
	Cookie     uint32 // names the rules that it comes from, 0 for none
	Deny       uint8  // 1: the traffic is dropped
	Pad        [3]byte
}

func (v PolicyValue) String() string {
	verdict := "allow"
	if v.Deny != 0 {
		verdict = "deny"
	}
	return fmt.Sprintf("%s precedence=%d cookie=%d", verdict, v.Precedence, v.Cookie)
}
