// SPDX-License-Identifier: Apache-2.0

package events

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// views are the tables in which events are looked up.
type views struct {
	cell.In

	DB        *statedb.DB
	Endpoints statedb.Table[*tables.Endpoint]
	Nodes     statedb.Table[*tables.Node]
	Pods      statedb.Table[*tables.Pod]
	Routes    statedb.Table[*tables.SubjectRoute]
	Rules     statedb.Table[*tables.EgressRule]
	Cookies   statedb.Table[*tables.RuleCookie]
	Verdicts  statedb.Table[*tables.Verdict]
	Slots     statedb.Table[*tables.Slot]
}

// enricher adds to events what the tables know. What would take a scan it keeps
// until the table changes.
type enricher struct {
	views
	wallTime func(monotonic uint64) time.Time

	mu      sync.Mutex
	rulesAt statedb.Revision
	rules   map[ruleKey]*tables.EgressRule // nil: none
	named   map[uint32][]string            // rules of network policies by cookie
}

func newEnricher(v views) *enricher {
	return &enricher{views: v, wallTime: wallTime, named: map[uint32][]string{}}
}

// enrich returns an event with what is known of it now.
func (e *enricher) enrich(raw *bpf.Event) *tables.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	txn := e.DB.ReadTxn()
	event := &tables.Event{
		Kind:          kindOf(raw.Kind),
		Time:          e.wallTime(raw.Time),
		Reason:        raw.Reason.String(),
		Program:       raw.Program.String(),
		Direction:     raw.Direction.String(),
		IfIndex:       raw.IfIndex,
		Source:        e.peer(txn, raw.Source, raw.SourcePort),
		Destination:   e.peer(txn, raw.Destination, raw.DestPort),
		Protocol:      tables.ProtocolName(raw.Protocol),
		Length:        raw.Length,
		EgressRuleset: raw.EgressRuleset,
		Group:         raw.Group,
		Cookie:        raw.Cookie,
		Rules:         e.names(txn, raw),
	}
	switch raw.Protocol {
	case unix.IPPROTO_TCP:
		event.TCPFlags = tcpFlags(raw.TCPFlags)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		event.ICMPType = &raw.ICMPType
	}
	own, remote := event.Source, event.Destination
	if raw.Direction == bpf.DirectionIngress {
		own, remote = remote, own
	}
	event.Pod = own.Pod
	if event.Pod == "" {
		event.Pod = e.podOfDevice(txn, raw.IfIndex)
	}
	if rule := e.rule(txn, e.egressRuleset(txn, raw, own.Addr), remote.Addr); rule != nil {
		event.Policy, event.Rule = rule.Policy, rule.Destination
	}
	if gateway := raw.Gateway.Addr(); gateway.IsValid() {
		event.Gateway = e.peer(txn, raw.Gateway, [2]byte{})
	}
	if egress := raw.Egress.Addr(); egress.IsValid() {
		event.Egress = netip.AddrPortFrom(egress, binary.BigEndian.Uint16(raw.EgressPort[:]))
	}
	return event
}

func (e *enricher) peer(txn statedb.ReadTxn, address bpf.Address, port [2]byte) tables.EventPeer {
	peer := tables.EventPeer{Addr: address.Addr(), Port: binary.BigEndian.Uint16(port[:])}
	if !peer.Addr.IsValid() {
		return peer
	}
	if owner, _ := tables.AddrOwner(txn, e.Endpoints, peer.Addr); owner != nil {
		peer.Pod, peer.Node = owner.Name.String(), owner.Node
		return peer
	}
	for node := range e.Nodes.List(txn, tables.NodesByAddr(peer.Addr)) {
		peer.Node = node.Name
		break
	}
	return peer
}

// podOfDevice returns the pod behind a device, to report when a packet has an unknown
// address.
func (e *enricher) podOfDevice(txn statedb.ReadTxn, ifIndex uint32) string {
	pod, _, found := e.Pods.Get(txn, tables.PodsByIfIndex(ifIndex))
	if !found {
		return ""
	}
	return pod.Endpoint.String()
}

// egressRuleset returns the egress ruleset of an event's pod, 0 if none was looked up. Its
// number means something only in the slot of maps that this agent writes to; of another one
// it is that which is wanted for the pod now.
func (e *enricher) egressRuleset(txn statedb.ReadTxn, raw *bpf.Event, pod netip.Addr) uint32 {
	if raw.EgressRuleset == 0 || e.isOwn(txn, raw.Slot) {
		return raw.EgressRuleset
	}
	row, _, found := e.Pods.Get(txn, tables.PodByAddr(pod))
	if !found {
		return 0
	}
	route, _, found := e.Routes.Get(txn, tables.RouteBySubject(row.Subject))
	if !found {
		return 0
	}
	return route.EgressRuleset
}

// isOwn reports whether this agent writes to a slot.
func (e *enricher) isOwn(txn statedb.ReadTxn, slot uint8) bool {
	row, _, found := e.Slots.Get(txn, tables.SlotByNumber(uint32(slot)))
	return found && row.Own
}

type ruleKey struct {
	ruleset     uint32
	destination netip.Addr
}

// maxRules bounds the destinations whose rule is kept.
const maxRules = 4096

// rule returns the rule of an egress ruleset that decides for a destination, nil if none.
func (e *enricher) rule(
	txn statedb.ReadTxn, ruleset uint32, destination netip.Addr,
) *tables.EgressRule {
	if ruleset == 0 || !destination.IsValid() {
		return nil
	}
	revision := e.Rules.Revision(txn)
	if e.rules == nil || revision != e.rulesAt || len(e.rules) >= maxRules {
		e.rulesAt, e.rules = revision, map[ruleKey]*tables.EgressRule{}
	}
	key := ruleKey{ruleset, destination}
	rule, ok := e.rules[key]
	if !ok {
		rule = tables.EgressRuleFor(txn, e.Rules, ruleset, destination)
		e.rules[key] = rule
	}
	return rule
}

func kindOf(k bpf.EventKind) tables.EventKind {
	if k == bpf.EventFlow {
		return tables.EventFlow
	}
	return tables.EventDrop
}

// wallTime returns the time of day of a moment of CLOCK_MONOTONIC, by the clock
// as it is set now.
func wallTime(monotonic uint64) time.Time {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return time.Now().UTC()
	}
	age := time.Duration(now.Nano() - int64(monotonic))
	return time.Now().Add(-age).Round(0).UTC()
}

// tcpFlagLetters are those of the flags from the lowest bit on.
const tcpFlagLetters = "FSRPAUEC"

func tcpFlags(flags uint8) string {
	var b strings.Builder
	for i, letter := range tcpFlagLetters {
		if flags&(1<<i) != 0 {
			b.WriteRune(letter)
		}
	}
	return b.String()
}
