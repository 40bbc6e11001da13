// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Address is an IPv4 or IPv6 address as the kernel programs compare it: 16
// bytes in network order, IPv4 as an IPv4-mapped IPv6 address. The zero value
// is "no address".
type Address [16]byte

// AddressFrom returns the map form of an address; an invalid one is the zero Address.
func AddressFrom(a netip.Addr) Address {
	if !a.IsValid() {
		return Address{}
	}
	return a.As16()
}

// Addr returns the address, with IPv4-mapped ones as IPv4, and an invalid
// [netip.Addr] for the zero Address.
func (a Address) Addr() netip.Addr {
	if a == (Address{}) {
		return netip.Addr{}
	}
	return netip.AddrFrom16(a).Unmap()
}

// String returns the textual address, or "-" for none.
func (a Address) String() string {
	if addr := a.Addr(); addr.IsValid() {
		return addr.String()
	}
	return "-"
}

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *Address) UnmarshalText(text []byte) error {
	if string(text) == "-" {
		*a = Address{}
		return nil
	}
	addr, err := netip.ParseAddr(string(text))
	if err != nil {
		return err
	}
	*a = AddressFrom(addr)
	return nil
}

// Address families as the kernel programs tell them apart inside prefix keys.
const (
	FamilyIPv4 uint8 = 4
	FamilyIPv6 uint8 = 6
)

// PodKey is the key of sluice_pods: the address of a pod on this node.
type PodKey struct{ Addr Address }

func (k PodKey) String() string { return k.Addr.String() }

// IPCacheKey is the key of sluice_ipcache, a longest-prefix-match map.
type IPCacheKey struct {
	PrefixLen uint32 // bits of what follows that count: 32 for the family, then the prefix's own
	Family    uint8  // FamilyIPv4 or FamilyIPv6
	Pad       [3]byte
	Addr      [16]byte // network order; IPv4 in the first four bytes
}

// IPCacheKeyFrom returns the key of a prefix.
func IPCacheKeyFrom(p netip.Prefix) IPCacheKey {
	k := IPCacheKey{PrefixLen: 32 + uint32(p.Bits())}
	k.Family, k.Addr = familyAndBytes(p.Addr())
	return k
}

// Prefix returns the prefix that the key stands for.
func (k IPCacheKey) Prefix() netip.Prefix {
	return prefixFrom(k.Family, k.Addr, int(k.PrefixLen)-32)
}

func (k IPCacheKey) String() string { return k.Prefix().String() }

// IPCacheFlags are the flags of an [IPCacheValue].
type IPCacheFlags uint32

const (
	// IPCacheInCluster marks addresses inside the cluster: never redirected to an egress gateway.
	IPCacheInCluster IPCacheFlags = 1 << iota
	// IPCacheHost marks addresses of this node.
	IPCacheHost
	// IPCacheNode marks addresses of cluster nodes.
	IPCacheNode
	// IPCacheService marks service addresses.
	IPCacheService
	// IPCachePod marks addresses of pods.
	IPCachePod
	// IPCacheLocalScope marks link-local, multicast and broadcast destinations.
	IPCacheLocalScope
	// IPCacheAPIServer marks backends of the Kubernetes API server.
	IPCacheAPIServer
	// IPCacheLocalPods marks addresses of pods of this node, and the prefixes where they
	// get them from.
	IPCacheLocalPods
)

var ipcacheFlagNames = []string{
	"in-cluster", "host", "node", "service", "pod", "local-scope", "kube-apiserver", "local-pods",
}

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (f IPCacheFlags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *IPCacheFlags) UnmarshalText(text []byte) error {
	flags, err := parseFlags(string(text), ipcacheFlagNames)
	*f = IPCacheFlags(flags)
	return err
}

func (f IPCacheFlags) String() string { return flagsString(uint32(f), ipcacheFlagNames) }

// GroupExcluded is the gateway group of destinations that a policy leaves out:
// traffic to them goes its ordinary way.
const GroupExcluded uint32 = 0

// EgressValue is the value of sluice_egress.
type EgressValue struct {
	Group uint32 // gateway group, or GroupExcluded

	// Bits are those of the destination prefix of the entry: the kernel does not say which
	// entry answers a lookup.
	Bits uint8
	Pad  [3]byte

	// Policy is the cookie of the policy that decides, see [PolicyCookie]: what it has translated
	// counts for it. 0 if it does not count.
	Policy uint32
}

func (v EgressValue) String() string {
	if v.Group == GroupExcluded {
		return "excluded"
	}
	return fmt.Sprintf("group=%d", v.Group)
}

// GatewayBuckets is the number of buckets over which the sources of a gateway
// group are spread: hash of the source address modulo this.
const GatewayBuckets = 256

// GatewayKey is the key of sluice_gateways.
type GatewayKey struct {
	Group  uint32
	Bucket uint32 // 0 to GatewayBuckets-1
}

func (k GatewayKey) String() string { return fmt.Sprintf("group=%d bucket=%d", k.Group, k.Bucket) }

// GatewayValue is the value of sluice_gateways.
type GatewayValue struct {
	Gateway Address // node that is the gateway; zero: none, traffic is dropped
	// source address given to IPv4 traffic, on the gateway only; zero: none, dropped there
	Egress4 [4]byte
	IfIndex uint32  // device by which it leaves, on the gateway only
	Egress6 Address // source address given to IPv6 traffic, on the gateway only
}

func (v GatewayValue) String() string {
	egress4 := "-"
	if v.Egress4 != ([4]byte{}) {
		egress4 = netip.AddrFrom4(v.Egress4).String()
	}
	return fmt.Sprintf(
		"gateway=%s egress4=%s egress6=%s ifindex=%d", v.Gateway, egress4, v.Egress6, v.IfIndex,
	)
}

// Digest identifies what a number stands for: a hash of the canonical text of
// a class's signature, or of a gateway group's specification.
type Digest [16]byte

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Digest) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(d) {
		return fmt.Errorf("parse digest %q: want %d hexadecimal digits", text, 2*len(d))
	}
	_, err := hex.Decode(d[:], text)
	return err
}

func familyAndBytes(a netip.Addr) (family uint8, b [16]byte) {
	if a.Is4() {
		a4 := a.As4()
		copy(b[:], a4[:])
		return FamilyIPv4, b
	}
	return FamilyIPv6, a.As16()
}

func prefixFrom(family uint8, b [16]byte, bits int) netip.Prefix {
	if family == FamilyIPv4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(b[:4])), bits)
	}
	return netip.PrefixFrom(netip.AddrFrom16(b), bits)
}

func flagsString(flags uint32, names []string) string {
	var set []string
	for i, name := range names {
		if flags&(1<<i) != 0 {
			set = append(set, name)
		}
	}
	if len(set) == 0 {
		return "-"
	}
	return strings.Join(set, ",")
}

func parseFlags(text string, names []string) (flags uint32, err error) {
	if text == "-" || text == "" {
		return 0, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		i := slices.Index(names, name)
		if i < 0 {
			return 0, fmt.Errorf("parse flags: unknown %q, known are %s", name, strings.Join(names, ", "))
		}
		flags |= 1 << i
	}
	return flags, nil
}
