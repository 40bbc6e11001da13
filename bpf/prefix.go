// SPDX-License-Identifier: Apache-2.0

package bpf

import "unsafe"

// Keys of prefix maps are a prefix length, a uint32 in the order of the
// machine, and behind it the bits, the first being the highest of its byte.

const prefixLenBytes = 4

// PrefixLen returns the prefix length of a key of a prefix map.
func PrefixLen[K comparable](key K) int {
	return int(*(*uint32)(unsafe.Pointer(&key)))
}

// MaxPrefixLen returns the greatest prefix length of the keys of a prefix map.
func MaxPrefixLen[K comparable]() int {
	var key K
	return 8 * (int(unsafe.Sizeof(key)) - prefixLenBytes)
}

// Masked returns the key of a prefix map with zeros behind its prefix.
func Masked[K comparable](key K) K { return Truncated(key, PrefixLen(key)) }

// Truncated returns the key of a prefix map cut to a length: the key of the
// prefix of that length that covers it.
func Truncated[K comparable](key K, length int) K {
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&key)), unsafe.Sizeof(key))
	*(*uint32)(unsafe.Pointer(&key)) = uint32(length)
	data := raw[prefixLenBytes:]
	whole := length / 8
	if whole >= len(data) {
		return key
	}
	data[whole] &= ^byte(0xff >> (length % 8))
	clear(data[whole+1:])
	return key
}
