// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// EventKind is the kind of an [Event].
type EventKind string

// The kinds of events: those that the kernel reports, and others that a follower gets.
const (
	EventDrop   EventKind = "drop"   // a packet was dropped
	EventFlow   EventKind = "flow"   // a flow began
	EventLost   EventKind = "lost"   // events were lost, as the follower was too slow
	EventNotice EventKind = "notice" // a message for people
)

// Event is what the programs report of a packet, with what the tables know of
// it at that moment. It is no row: it is passed on and not kept. All
// followers of events share it, so it must not be changed.
type Event struct {
	Kind EventKind `json:"kind"`
	Time time.Time `json:"time"`

	Reason    string `json:"reason,omitempty"`    // of a drop, or which way a flow goes
	Program   string `json:"program,omitempty"`   // that saw the packet
	Direction string `json:"direction,omitempty"` // egress or ingress, as seen from the pod
	IfIndex   uint32 `json:"ifIndex,omitempty"`   // device that the program is attached to

	Source      EventPeer `json:"source,omitzero"` // as the packet has it
	Destination EventPeer `json:"destination,omitzero"`
	Protocol    string    `json:"protocol,omitempty"`
	TCPFlags    string    `json:"tcpFlags,omitempty"` // a letter each: FSRPAUEC
	ICMPType    *uint8    `json:"icmpType,omitempty"` // nil unless the protocol is ICMP
	Length      uint32    `json:"length,omitempty"`   // bytes of the frame

	Pod           string       `json:"pod,omitempty"`           // of the packet: namespace/name
	EgressRuleset uint32       `json:"egressRuleset,omitempty"` // 0 if none was looked up
	Group         uint32       `json:"group,omitempty"`         // of gateways, 0: not looked up
	Policy        string       `json:"policy,omitempty"`        // egress policy that decides
	Rule          netip.Prefix `json:"rule,omitzero"`           // destination of its rule

	// of the rules of network policies that decided, 0 if none did
	Cookie uint32 `json:"cookie,omitempty"`
	// these, such as "NetworkPolicy/shop/web spec.ingress[0]"
	Rules []string `json:"policyRules,omitempty"`

	// that a flow is sent to, or the sender that is no node
	Gateway EventPeer      `json:"gateway,omitzero"`
	Egress  netip.AddrPort `json:"egress,omitzero"` // that a flow leaves the gateway with

	Lost    uint64 `json:"lost,omitempty"`    // how many events
	Message string `json:"message,omitempty"` // of a notice
}

// EventPeer is an end of a packet's way.
type EventPeer struct {
	Addr netip.Addr `json:"addr"`
	Port uint16     `json:"port,omitempty"` // of ICMP echo its identifier, on the side that asks
	Pod  string     `json:"pod,omitempty"`  // that the address belongs to: namespace/name
	Node string     `json:"node,omitempty"` // that the pod is on, or that the address is of
}

// String returns the pod or the address, with the port if there is one.
func (p EventPeer) String() string {
	switch {
	case p.Pod != "" && p.Port != 0:
		return p.Pod + ":" + strconv.Itoa(int(p.Port))
	case p.Pod != "":
		return p.Pod
	case p.Port != 0 && p.Addr.IsValid():
		return netip.AddrPortFrom(p.Addr, p.Port).String()
	}
	return addrColumn(p.Addr)
}

// Packet describes the packet by its addresses.
func (e *Event) Packet() string {
	source, destination := e.Source, e.Destination
	source.Pod, destination.Pod = "", ""
	return e.packet(source, destination)
}

func (e *Event) packet(source, destination EventPeer) string {
	text := e.Protocol
	switch {
	case e.ICMPType != nil:
		name := icmpType(e.Protocol, *e.ICMPType)
		text += " " + name
		if strings.HasPrefix(name, icmpEcho) {
			text += fmt.Sprintf(" id %d", max(source.Port, destination.Port))
			source.Port, destination.Port = 0, 0
		}
	case e.TCPFlags != "":
		text += " " + e.TCPFlags
	}
	return source.String() + " -> " + destination.String() + " " + text
}

const icmpEcho = "echo "

// icmpTypes are the types that are met most often, by protocol.
var icmpTypes = map[string]map[uint8]string{
	"ICMP": {0: icmpEcho + "reply", 3: "unreachable", 8: icmpEcho + "request", 11: "time exceeded"},
	"ICMPv6": {1: "unreachable", 2: "packet too big", 3: "time exceeded",
		128: icmpEcho + "request", 129: icmpEcho + "reply"},
}

// ProtocolNames are the IP protocols with a name in events and in the ledger.
var ProtocolNames = map[uint8]string{
	1: "ICMP", 6: "TCP", 17: "UDP", 47: "GRE", 50: "ESP", 51: "AH", 58: "ICMPv6", 132: "SCTP",
}

// ProtocolName returns the name of an IP protocol, or protocol-N.
func ProtocolName(number uint8) string {
	if name, ok := ProtocolNames[number]; ok {
		return name
	}
	return fmt.Sprintf("protocol-%d", number)
}

func icmpType(protocol string, number uint8) string {
	if name, ok := icmpTypes[protocol][number]; ok {
		return name
	}
	return "type " + strconv.Itoa(int(number))
}

// String returns the event as a line for people, with the local time.
func (e *Event) String() string {
	line := e.Time.Local().Format("15:04:05.000000") + " " + strings.ToUpper(string(e.Kind)) + " "
	switch e.Kind {
	case EventLost:
		return line + fmt.Sprintf("%d events: they came faster than they were read", e.Lost)
	case EventNotice:
		return line + e.Message
	}
	parts := []string{e.packet(e.Source, e.Destination)}
	if e.Pod != "" && e.Pod != e.Source.Pod && e.Pod != e.Destination.Pod {
		parts = append(parts, "pod "+e.Pod)
	}
	if e.Policy != "" {
		parts = append(parts, fmt.Sprintf("policy %s (%s)", e.Policy, e.Rule))
	}
	switch {
	case len(e.Rules) > 0:
		parts = append(parts, "rule "+strings.Join(e.Rules, " and "))
	case e.Cookie != 0:
		parts = append(parts, fmt.Sprintf("rule unknown (cookie %d)", e.Cookie))
	}
	if e.Gateway.Addr.IsValid() {
		role := "gateway "
		if e.Reason == bpf.ReasonUnknownNode.String() {
			role = "sender "
		}
		if e.Gateway.Node == "" {
			parts = append(parts, role+e.Gateway.Addr.String())
		} else {
			parts = append(parts, fmt.Sprintf("%s%s (%s)", role, e.Gateway.Node, e.Gateway.Addr))
		}
	}
	if e.Egress.IsValid() {
		parts = append(parts, "egress "+EventPeer{Addr: e.Egress.Addr(), Port: e.Egress.Port()}.String())
	}
	parts = append(parts, fmt.Sprintf("%d bytes", e.Length))
	return line + e.Reason + ": " + strings.Join(parts, ", ")
}

// EgressRuleFor returns the rule of an egress ruleset that decides for a destination: the
// one with the longest prefix, nil if there is none.
func EgressRuleFor(
	txn statedb.ReadTxn, rules statedb.Table[*EgressRule], ruleset uint32, destination netip.Addr,
) *EgressRule {
	for bits := destination.BitLen(); bits >= 0; bits-- {
		prefix := netip.PrefixFrom(destination, bits).Masked()
		rule, _, found := rules.Get(txn, EgressRuleByKey(EgressRuleKey{ruleset, prefix}))
		if found {
			return rule
		}
	}
	return nil
}
