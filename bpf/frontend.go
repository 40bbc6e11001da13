// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// FrontendKey is the key of sluice_services: an address and port that the host, or another
// node, translates to a backend.
type FrontendKey struct {
	Addr     Address // see [AnyNode] and [ThisHost]
	Port     [2]byte // network order
	Protocol uint8
	Family   uint8 // FamilyIPv4 or FamilyIPv6
	Pad      [4]byte
}

// FrontendKeyFrom returns the key of an address and port.
func FrontendKeyFrom(addr netip.Addr, protocol uint8, port uint16) FrontendKey {
	k := FrontendKey{Addr: AddressFrom(addr), Protocol: protocol, Family: FamilyIPv6}
	if addr.Is4() {
		k.Family = FamilyIPv4
	}
	if addr.IsUnspecified() {
		k.Addr = Address{}
	}
	binary.BigEndian.PutUint16(k.Port[:], port)
	return k
}

// AnyNode returns what stands, in [FrontendKeyFrom], for any address of any node.
func AnyNode(family uint8) netip.Addr {
	if family == FamilyIPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// ThisHost returns what stands, in [FrontendKeyFrom], for any address of this node.
func ThisHost(family uint8) netip.Addr {
	if family == FamilyIPv4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// AddrPort returns the address and port that the key was made of.
func (k FrontendKey) AddrPort() netip.AddrPort {
	addr := k.Addr.Addr()
	if !addr.IsValid() {
		addr = AnyNode(k.Family)
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(k.Port[:]))
}

func (k FrontendKey) String() string {
	protocol := fmt.Sprint(k.Protocol)
	switch k.Protocol {
	case unix.IPPROTO_TCP:
		protocol = "tcp"
	case unix.IPPROTO_UDP:
		protocol = "udp"
	case unix.IPPROTO_SCTP:
		protocol = "sctp"
	}
	return k.AddrPort().String() + "/" + protocol
}

// FrontendFlags are the flags of a [FrontendValue].
type FrontendFlags uint32

const (
	// FrontendAtNode says that the node that has the address translates it.
	FrontendAtNode FrontendFlags = 1 << iota
	// FrontendMore says that there are more backends than are listed.
	FrontendMore
)

var frontendFlagNames = []string{"at-node", "more"}

func (f FrontendFlags) String() string { return flagsString(uint32(f), frontendFlagNames) }

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (f FrontendFlags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *FrontendFlags) UnmarshalText(text []byte) error {
	flags, err := parseFlags(string(text), frontendFlagNames)
	*f = FrontendFlags(flags)
	return err
}

// Namespaces of a [FrontendValue] that are none.
const (
	// AllNamespaces says that all pods rely on the translation.
	AllNamespaces uint64 = 0
	// NoNamespace says that no pod does.
	NoNamespace uint64 = 1
)

// NamespaceDigest returns the digest of the name of a namespace: 64 bits of its SHA-256, never one
// of the constants.
func NamespaceDigest(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:]) | 2
}

// FrontendBackends is how many backends a [FrontendValue] lists.
const FrontendBackends = 16

// FrontendBackend is one of them, or stands for all pods with its label set.
type FrontendBackend struct {
	Addr Address
	Port [2]byte // network order
	Pad  [6]byte
}

// FrontendBackendFrom returns the backend at an address and port.
func FrontendBackendFrom(a netip.AddrPort) FrontendBackend {
	b := FrontendBackend{Addr: AddressFrom(a.Addr())}
	binary.BigEndian.PutUint16(b.Port[:], a.Port())
	return b
}

// AddrPort returns the address and port of the backend.
func (b FrontendBackend) AddrPort() netip.AddrPort {
	return netip.AddrPortFrom(b.Addr.Addr(), binary.BigEndian.Uint16(b.Port[:]))
}

// FrontendValue is the value of sluice_services.
type FrontendValue struct {
	Namespace uint64 // digest of the namespace whose pods rely on it, or a constant
	Flags     FrontendFlags
	Count     uint32 // of the backends, which are there with FrontendAtNode only
	Backends  [FrontendBackends]FrontendBackend
}

func (v FrontendValue) String() string {
	namespace := fmt.Sprintf("%016x", v.Namespace)
	switch v.Namespace {
	case AllNamespaces:
		namespace = "all"
	case NoNamespace:
		namespace = "none"
	}
	var backends []string
	for _, b := range v.Backends[:min(v.Count, FrontendBackends)] {
		backends = append(backends, b.AddrPort().String())
	}
	if backends == nil {
		backends = []string{"-"}
	}
	return fmt.Sprintf(
		"namespace=%s flags=%s backends=%s", namespace, v.Flags, strings.Join(backends, ","),
	)
}
