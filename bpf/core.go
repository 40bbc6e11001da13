// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
)

// PodFlags are the flags of a [PodValue].
type PodFlags uint32

// PodLocal marks pods of this node: packets are delivered to them and judged for them. The
// others are pods that this node may be the gateway of.
const PodLocal PodFlags = 1

func (f PodFlags) String() string {
	if f&PodLocal != 0 {
		return "local"
	}
	return "-"
}

// PodValue is the value of sluice_pods.
type PodValue struct {
	Subject uint32
	IfIndex uint32 // host side of the pod's veth; 0 while not known, and of remote pods
	Flags   PodFlags
	MAC     [6]byte // of the pod's own interface
	Pad     [6]byte

	// Namespace is the digest of the pod's namespace: see [NamespaceDigest]. 0 of pods of other
	// nodes, and of one of which only the address is known.
	Namespace uint64
}

func (v PodValue) String() string {
	return fmt.Sprintf("subject=%d ifindex=%d flags=%s mac=%s", v.Subject, v.IfIndex, v.Flags,
		net.HardwareAddr(v.MAC[:]))
}

// IPCacheValue is the value of sluice_ipcache.
type IPCacheValue struct {
	Member uint32
	Flags  IPCacheFlags
	Tunnel Address // node to encapsulate to; zero: none
}

func (v IPCacheValue) String() string {
	return fmt.Sprintf("member=%d flags=%s tunnel=%s", v.Member, v.Flags, v.Tunnel)
}

// SubjectKey is the key of sluice_subjects and sluice_routes.
type SubjectKey struct{ Subject uint32 }

func (k SubjectKey) String() string { return fmt.Sprintf("subject=%d", k.Subject) }

// SubjectValue is the value of sluice_subjects.
type SubjectValue struct{ Ruleset uint32 }

func (v SubjectValue) String() string { return fmt.Sprintf("ruleset=%d", v.Ruleset) }

// RouteValue is the value of sluice_routes.
type RouteValue struct{ EgressRuleset uint32 }

func (v RouteValue) String() string { return fmt.Sprintf("egress-ruleset=%d", v.EgressRuleset) }

// PeerKey is the key of sluice_peers.
type PeerKey struct{ Member uint32 }

func (k PeerKey) String() string { return fmt.Sprintf("member=%d", k.Member) }

// PeerValue is the value of sluice_peers.
type PeerValue struct{ Class uint32 }

func (v PeerValue) String() string { return fmt.Sprintf("class=%d", v.Class) }

// EmptyRuleset is the number of the ruleset of pods that no policy selects: everything is
// allowed to them.
const EmptyRuleset = 1

// AnyClass stands for all classes for which a ruleset has no special rules.
const AnyClass = 0

// PolicyKey is the key of sluice_policy.
type PolicyKey struct {
	Ruleset   uint32
	Class     uint32 // or AnyClass
	Direction Direction
	Pad       [3]byte
}

func (k PolicyKey) String() string {
	return fmt.Sprintf("ruleset=%d class=%d %s", k.Ruleset, k.Class, k.Direction)
}

// PolicyValue is the value of sluice_policy.
type PolicyValue struct{ Set uint32 }

func (v PolicyValue) String() string { return fmt.Sprintf("set=%d", v.Set) }

// VerdictKey is the key of sluice_verdicts, a longest-prefix-match map.
type VerdictKey struct {
	// PrefixLen counts the bits that matter behind it: 32 for any traffic of a set, 48 for
	// a protocol, and then those of the port.
	PrefixLen uint32
	Set       uint32
	Protocol  uint8
	Pad       uint8
	Port      [2]byte // network order; of ICMP the type
}

const (
	anyTrafficBits = 32
	protocolBits   = 48
)

// VerdictKeyOf returns the key of a range of ports: those with the first bits of port.
// Protocol 0 is any traffic.
func VerdictKeyOf(set uint32, protocol uint8, port uint16, bits int) VerdictKey {
	k := VerdictKey{PrefixLen: anyTrafficBits, Set: set}
	if protocol == 0 {
		return k
	}
	k.PrefixLen, k.Protocol = protocolBits+uint32(bits), protocol
	binary.BigEndian.PutUint16(k.Port[:], port&^uint16(1<<(16-bits)-1))
	return k
}

// Traffic returns what VerdictKeyOf was called with.
func (k VerdictKey) Traffic() (protocol uint8, port uint16, bits int) {
	if k.PrefixLen == anyTrafficBits {
		return 0, 0, 0
	}
	return k.Protocol, binary.BigEndian.Uint16(k.Port[:]), int(k.PrefixLen) - protocolBits
}

func (k VerdictKey) String() string {
	protocol, port, bits := k.Traffic()
	if protocol == 0 {
		return fmt.Sprintf("set=%d any", k.Set)
	}
	return fmt.Sprintf("set=%d protocol=%d port=%d/%d", k.Set, protocol, port, bits)
}

// VerdictValue is the value of sluice_verdicts.
type VerdictValue struct {
	Cookie  uint32 // names the rules that decide, 0 for none
	Deny    uint8
	Default uint8 // set if no rule about the traffic decides, but the default of a direction
	Pad     [2]byte
}

func (v VerdictValue) String() string {
	verdict := "allow"
	if v.Deny != 0 {
		verdict = "deny"
	}
	if v.Default != 0 {
		verdict = "default " + verdict
	}
	return fmt.Sprintf("%s cookie=%d", verdict, v.Cookie)
}

// EgressKey is the key of sluice_egress, a longest-prefix-match map.
type EgressKey struct {
	PrefixLen uint32 // bits that matter: 64 for ruleset and family, then the prefix's own
	Ruleset   uint32 // egress ruleset
	Family    uint8  // FamilyIPv4 or FamilyIPv6
	Pad       [3]byte
	Addr      [16]byte // network order; IPv4 in the first four bytes
}

// EgressKeyFrom returns the key of a destination prefix in an egress ruleset.
func EgressKeyFrom(ruleset uint32, p netip.Prefix) EgressKey {
	k := EgressKey{PrefixLen: 64 + uint32(p.Bits()), Ruleset: ruleset}
	k.Family, k.Addr = familyAndBytes(p.Addr())
	return k
}

// Prefix returns the destination prefix of the key.
func (k EgressKey) Prefix() netip.Prefix {
	return prefixFrom(k.Family, k.Addr, int(k.PrefixLen)-64)
}

func (k EgressKey) String() string { return fmt.Sprintf("ruleset=%d %s", k.Ruleset, k.Prefix()) }
