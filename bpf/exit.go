// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"net/netip"
)

// ExitKey is the key of sluice_exits: an egress address of this node.
type ExitKey struct{ Addr Address }

func (k ExitKey) String() string { return k.Addr.String() }

// ExitFlags are the flags of an [ExitValue].
type ExitFlags uint32

// ExitShared says that the host itself uses the address: of its ports only
// those of [ConfigValue.SharedPorts] are given to pods.
const ExitShared ExitFlags = 1 << 0

var exitFlagNames = []string{"shared"}

func (f ExitFlags) String() string { return flagsString(uint32(f), exitFlagNames) }

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (f ExitFlags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *ExitFlags) UnmarshalText(text []byte) error {
	flags, err := parseFlags(string(text), exitFlagNames)
	*f = ExitFlags(flags)
	return err
}

// ExitValue is the value of sluice_exits.
type ExitValue struct {
	IfIndex uint32 // device by which traffic with the address leaves
	Flags   ExitFlags
}

func (v ExitValue) String() string { return fmt.Sprintf("ifindex=%d flags=%s", v.IfIndex, v.Flags) }

// CoveredKey is the key of sluice_covered, a longest-prefix-match map of the
// destinations of all egress policies.
type CoveredKey struct {
	PrefixLen uint32 // bits of what follows that count: 32 for the family, then the prefix's own
	Family    uint8  // FamilyIPv4 or FamilyIPv6
	Pad       [3]byte
	Addr      [16]byte // network order; IPv4 in the first four bytes
}

// CoveredKeyFrom returns the key of a prefix.
func CoveredKeyFrom(p netip.Prefix) CoveredKey { return CoveredKey(IPCacheKeyFrom(p)) }

// Prefix returns the prefix that the key stands for.
func (k CoveredKey) Prefix() netip.Prefix { return IPCacheKey(k).Prefix() }

func (k CoveredKey) String() string { return k.Prefix().String() }

// CoveredValue is the value of sluice_covered.
type CoveredValue struct {
	Covered uint32 // 1
}

func (CoveredValue) String() string { return "covered" }
