// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// OverlayKeys is how many keys an [OverlayKeysValue] has room for.
const OverlayKeys = 2

// OverlayKeySize is the size of a key in bytes.
const OverlayKeySize = 16

// OverlayKey is a key by which nodes prove the origin of overlay packets. Its text, in whatever
// format, is its number: a key is never shown.
type OverlayKey struct {
	Halves [2]uint64 // of SipHash
	Number uint8     // by which packets name it: of the key's digest
	Pad    [7]uint8
}

// NewOverlayKey returns a key of 16 bytes.
func NewOverlayKey(b [OverlayKeySize]byte) OverlayKey {
	digest := sha256.Sum256(append([]byte("sluice overlay key\x00"), b[:]...))
	return OverlayKey{
		Halves: [2]uint64{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])},
		Number: digest[0],
	}
}

func (k OverlayKey) String() string { return fmt.Sprintf("%02x", k.Number) }

// Format implements [fmt.Formatter]: no verb shows the key.
func (k OverlayKey) Format(s fmt.State, _ rune) { fmt.Fprint(s, k.String()) }

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (k OverlayKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// OverlayKeysKey is the key of sluice_keys, whose only entry has index 0.
type OverlayKeysKey struct{ Index uint32 }

func (k OverlayKeysKey) String() string { return fmt.Sprint(k.Index) }

// OverlayKeysValue is the value of sluice_keys. Overlay packets are sent with a proof by the
// first key, and accepted with one by any of them.
type OverlayKeysValue struct {
	Keys           [OverlayKeys]OverlayKey
	Count          uint32 // of keys
	AcceptUnsigned uint32 // 1: packets without a proof are accepted too
}

// NewOverlayKeysValue returns the entry for some keys, of which the first is sent with.
func NewOverlayKeysValue(keys []OverlayKey, acceptUnsigned bool) (v OverlayKeysValue) {
	v.Count = uint32(copy(v.Keys[:], keys))
	if acceptUnsigned {
		v.AcceptUnsigned = 1
	}
	return v
}

// All returns the keys.
func (v OverlayKeysValue) All() []OverlayKey {
	return slices.Clone(v.Keys[:min(v.Count, OverlayKeys)])
}

func (v OverlayKeysValue) String() string {
	var keys []string
	for _, k := range v.All() {
		keys = append(keys, k.String())
	}
	unsigned := "dropped"
	if v.AcceptUnsigned != 0 {
		unsigned = "accepted"
	}
	return fmt.Sprintf("keys=%s unsigned=%s", strings.Join(keys, ","), unsigned)
}

// Format implements [fmt.Formatter]: no verb shows the keys.
func (v OverlayKeysValue) Format(s fmt.State, _ rune) { fmt.Fprint(s, v.String()) }

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (v OverlayKeysValue) MarshalText() ([]byte, error) { return []byte(v.String()), nil }
