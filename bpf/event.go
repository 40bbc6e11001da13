// SPDX-License-Identifier: Apache-2.0

package bpf

import "fmt"

// Reason says why a packet went the way it did. The numbers are those of enum
// reason in programs/event.h.
type Reason uint8

// Reasons below ReasonDrops are no drops.
const (
	ReasonPassed         Reason = 0 // left to the host's stack
	ReasonToGateway      Reason = 1 // sent to a gateway
	ReasonTranslated     Reason = 2 // sent out with its egress address
	ReasonReplyLocal     Reason = 3 // reply, delivered to a pod here
	ReasonReplyOverlay   Reason = 4 // reply, sent to the pod's node
	ReasonHostTranslated Reason = 5 // of the host, given another port
	// accepted from the overlay without a proof of its origin
	ReasonOverlayUnsigned Reason = 6

	ReasonEventLost Reason = 15 // counts events that sluice_events had no room for

	ReasonDrops         Reason = 16
	ReasonMalformed     Reason = 16 // truncated, or its lengths contradict each other
	ReasonUnknownSource Reason = 17 // sent by a pod from an address that is not its own
	// held: what policies want of the pod is not in the kernel yet
	ReasonPodNotReady Reason = 18
	ReasonNoGateway   Reason = 19
	ReasonNoEgressIP  Reason = 20
	// all ports of the egress address towards the destination are taken
	ReasonNoSNATPort Reason = 21
	// came over the overlay from no node of the cluster, or not from the pod's
	ReasonUnknownNode Reason = 22
	// came over the overlay, and nothing here is to be done with it
	ReasonNoRule              Reason = 23
	ReasonPredatesPolicy      Reason = 24 // older than the policy: it had no egress address
	ReasonUnsupportedProtocol Reason = 25 // under an egress rule, but cannot be translated
	ReasonUnknownFragment     Reason = 26 // under a policy, but its first fragment was not seen
	ReasonTooBig              Reason = 27 // answered with the MTU
	ReasonTTLExceeded         Reason = 28
	ReasonNotChecked          Reason = 29 // backstop: the pod's device has no program yet
	// backstop: to a service whose endpoint is outside, under an egress rule
	ReasonServiceOutside     Reason = 30
	ReasonNATFailed          Reason = 31 // the translation could not be recorded
	ReasonWriteFailed        Reason = 32 // the packet could not be changed
	ReasonNotConfigured      Reason = 33 // sluice_config is empty
	ReasonUnknownDestination Reason = 34 // to a pod's device at no address of the pod, or off its link
	ReasonPolicyDenied       Reason = 35 // no network policy allows it
	ReasonPolicyRule         Reason = 36 // a rule of a network policy denies it
	// to the overlay's port of a node, and not sent by a node itself
	ReasonOverlayPort Reason = 37
	// came over the overlay without a proof that its sender has the key
	ReasonOverlayKey Reason = 38
	// the pod has its share of a map of connections or translations
	ReasonConnectionShare Reason = 39
	// the pod has its share of the egress address's ports towards the destination
	ReasonPortShare Reason = 40

	// ReasonNotOwned: of an egress address that moves, and that this node has not the lease of.
	ReasonNotOwned Reason = 41

	// ReasonNoPortBlock: this node has no ports of the egress address yet.
	ReasonNoPortBlock Reason = 42

	// ReasonOtherBlock: by a port of an egress address that the packet's node has not.
	ReasonOtherBlock Reason = 43
	// ReasonBandwidth: more than the limit of its egress policy, or of its pod in it.
	ReasonBandwidth Reason = 44

	// ReasonCount bounds the numbers.
	ReasonCount Reason = 48
)

var reasonNames = map[Reason]string{
	ReasonPassed:              "passed",
	ReasonToGateway:           "to gateway",
	ReasonTranslated:          "translated",
	ReasonReplyLocal:          "reply delivered",
	ReasonReplyOverlay:        "reply to node",
	ReasonHostTranslated:      "host translated",
	ReasonOverlayUnsigned:     "unsigned overlay packet",
	ReasonEventLost:           "event lost",
	ReasonMalformed:           "malformed packet",
	ReasonUnknownSource:       "unknown source address",
	ReasonPodNotReady:         "pod not ready",
	ReasonNoGateway:           "no egress gateway",
	ReasonNoEgressIP:          "no egress IP",
	ReasonNoSNATPort:          "no SNAT port",
	ReasonUnknownNode:         "unknown overlay source",
	ReasonNoRule:              "no egress rule",
	ReasonPredatesPolicy:      "predates policy",
	ReasonUnsupportedProtocol: "unsupported protocol",
	ReasonUnknownFragment:     "unknown fragment",
	ReasonTooBig:              "packet too big",
	ReasonTTLExceeded:         "TTL exceeded",
	ReasonNotChecked:          "pod not programmed",
	ReasonServiceOutside:      "service outside the cluster",
	ReasonNATFailed:           "translation not recorded",
	ReasonWriteFailed:         "packet not writable",
	ReasonNotConfigured:       "datapath not configured",
	ReasonUnknownDestination:  "unknown destination address",
	ReasonPolicyDenied:        "policy denied",
	ReasonPolicyRule:          "policy denied by rule",
	ReasonOverlayPort:         "pod to overlay port",
	ReasonOverlayKey:          "wrong overlay key",
	ReasonConnectionShare:     "connection share used up",
	ReasonPortShare:           "port share used up",
	ReasonNotOwned:            "egress IP not owned",
	ReasonNoPortBlock:         "no port block",
	ReasonOtherBlock:          "port of another node",
	ReasonBandwidth:           "bandwidth limit",
}

// Drop reports whether the packet was dropped.
func (r Reason) Drop() bool { return r >= ReasonDrops }

func (r Reason) String() string {
	if name, ok := reasonNames[r]; ok {
		return name
	}
	return fmt.Sprintf("reason-%d", uint8(r))
}

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *Reason) UnmarshalText(text []byte) error {
	for reason, name := range reasonNames {
		if name == string(text) {
			*r = reason
			return nil
		}
	}
	return fmt.Errorf("parse reason: unknown %q", text)
}

// Program is one of the programs.
type Program uint8

// The programs, by their numbers in events.
const (
	ProgramFromPod     Program = 1
	ProgramToPod       Program = 2
	ProgramFromOverlay Program = 3
	ProgramFromNetdev  Program = 4
	ProgramToNetdev    Program = 5
	ProgramBackstop    Program = 6
)

var programNames = map[Program]string{
	ProgramFromPod: "from_pod", ProgramToPod: "to_pod", ProgramFromOverlay: "from_overlay",
	ProgramFromNetdev: "from_netdev", ProgramToNetdev: "to_netdev", ProgramBackstop: "backstop",
}

// String returns the name of the program in the kernel.
func (p Program) String() string {
	if name, ok := programNames[p]; ok {
		return name
	}
	return fmt.Sprintf("program-%d", uint8(p))
}

// Direction is that of a packet as seen from the pod.
type Direction uint8

// The directions.
const (
	DirectionEgress  Direction = 0
	DirectionIngress Direction = 1

	// Directions is how many there are: the index of a reason's counter in
	// sluice_metrics is reason*Directions + direction.
	Directions = 2
)

func (d Direction) String() string {
	if d == DirectionIngress {
		return "ingress"
	}
	return "egress"
}

// EventKind says what an [Event] reports.
type EventKind uint8

// The kinds of events.
const (
	EventDrop EventKind = 1 // a packet was dropped
	EventFlow EventKind = 2 // a flow began
)

// Event is a record of sluice_events. Ports are in network order.
type Event struct {
	Time          uint64 // nanoseconds of CLOCK_MONOTONIC
	Kind          EventKind
	Reason        Reason
	Program       Program
	Direction     Direction
	Family        uint8 // FamilyIPv4 or FamilyIPv6
	Protocol      uint8 // as in the IP header
	TCPFlags      uint8
	ICMPType      uint8
	Source        Address // of the packet; of an ICMP error, of the flow that it is about, reversed
	Destination   Address
	SourcePort    [2]byte
	DestPort      [2]byte
	Length        uint32 // bytes, with the Ethernet header
	IfIndex       uint32
	EgressRuleset uint32  // 0 if none was looked up
	Group         uint32  // gateway group, 0 if none was looked up
	Cookie        uint32  // of the rules of network policies that decided, 0 for none
	Gateway       Address // of a flow: the gateway that it is pinned to
	Egress        Address // of a flow on its gateway: the address that it leaves with
	EgressPort    [2]byte
	Slot          uint8 // of the maps that were looked into: numbers mean something in one only
	Pad           [5]byte
}

// Metric is the counter of one reason and direction, on one CPU.
type Metric struct {
	Packets uint64
	Bytes   uint64
}
