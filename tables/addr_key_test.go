// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// Keys tell addresses and prefixes apart, in order within a family, whatever form
// an address of IPv4 has.
func TestAddrKey(t *testing.T) {
	var former []byte
	for _, text := range []string{"0.0.0.0", "0.0.0.1", "10.0.0.0", "10.1.0.0", "255.255.255.255", "::", "::1", "a00::", "ffff::"} {
		key, err := addrKeyFromString(text)
		require.NoError(t, err)
		require.Negative(t, bytes.Compare(former, key), text)
		former = key
	}
	require.Equal(t, addrKey(netip.MustParseAddr("10.0.0.1")), addrKey(netip.MustParseAddr("::ffff:10.0.0.1")))
	_, err := addrKeyFromString("10.0.0")
	require.Error(t, err)
}

func TestPrefixKey(t *testing.T) {
	var former []byte
	for _, text := range []string{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/32", "10.1.0.0/16", "::/0", "::/128", "a00::/8"} {
		key, err := prefixKeyFromString(text)
		require.NoError(t, err)
		require.Negative(t, bytes.Compare(former, key), text)
		former = key
	}
	require.Equal(t, prefixKey(netip.MustParsePrefix("10.0.0.0/8")), prefixKey(netip.MustParsePrefix("10.1.2.3/8")))
	_, err := prefixKeyFromString("10.0.0.1")
	require.Error(t, err)
}
