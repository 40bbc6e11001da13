// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"github.com/cilium/statedb/index"
)

// The families in keys of addresses: each index of a table with many of them is
// shorter by what the 16 bytes that IPv4 has in the keys of StateDB take in each.
const (
	keyOfIPv4 = 4
	keyOfIPv6 = 6
)

// Keys of addresses and prefixes in tables with many rows.
var (
	ShortAddrKeys   = KeysOf(addrKey, addrKeyFromString)
	ShortPrefixKeys = KeysOf(prefixKey, prefixKeyFromString)
)

// addrKey is a short index key of an address. Those of one family are in order.
func addrKey(a netip.Addr) index.Key {
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		return append(append(make(index.Key, 0, 6), keyOfIPv4), b[:]...)
	}
	b := a.As16()
	return append(append(make(index.Key, 0, 18), keyOfIPv6), b[:]...)
}

func addrKeyFromString(s string) (index.Key, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return nil, err
	}
	return addrKey(a), nil
}

// prefixKey is a short index key of a prefix, which begins with that of its address.
func prefixKey(p netip.Prefix) index.Key { return append(addrKey(p.Masked().Addr()), uint8(p.Bits())) }

func prefixKeyFromString(s string) (index.Key, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return nil, err
	}
	return prefixKey(p), nil
}
