// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func tuple(protocol uint8, from, to string, flags TupleFlags) Tuple {
	return Tuple{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to), Protocol: protocol, Flags: flags}
}

func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// An outgoing A:p to B:q has daddr A, saddr B, dport q, sport p.
func TestKeyBytes(t *testing.T) {
	out := tuple(unix.IPPROTO_TCP, "10.0.0.1:258", "192.0.2.7:772", Out)
	key := NewKey4(out)
	require.Equal(t, []byte{10, 0, 0, 1, 192, 0, 2, 7, 3, 4, 1, 2, 6, 0}, bytesOf(&key))
	key = NewKey4(Tuple{Source: netip.MustParseAddrPort("[::ffff:10.0.0.1]:258"), Destination: out.Destination, Protocol: 6})
	require.Equal(t, out, key.Tuple())
	require.Equal(t, "tcp 10.0.0.1:258 -> 192.0.2.7:772 out", key.String())

	in6 := tuple(unix.IPPROTO_UDP, "[2001:db8::1]:1000", "[2001:db8::2]:53", In)
	require.Equal(t, in6, NewKey6(in6).Tuple())
	require.Len(t, bytesOf(&Key6{}), 38)
	mapped := tuple(unix.IPPROTO_TCP, "[::ffff:10.0.0.1]:258", "[::ffff:192.0.2.7]:772", Out)
	require.Equal(t, mapped, NewKey6(mapped).Tuple())
	require.True(t, in6.Is6() && NewKey6(mapped).Tuple().Is6(), "as the map is")
	require.False(t, out.Is6() || NewKey4(mapped).Tuple().Is6())
}

func TestReverse(t *testing.T) {
	out := tuple(unix.IPPROTO_UDP, "10.0.0.1:1000", "192.0.2.7:53", Out)
	require.Equal(t, tuple(unix.IPPROTO_UDP, "192.0.2.7:53", "10.0.0.1:1000", In), out.Reverse())
	require.Equal(t, out, out.Reverse().Reverse())
}

func TestNames(t *testing.T) {
	require.Equal(t, "sluice_ct4_tcp", CTName(false, unix.IPPROTO_TCP))
	require.Equal(t, "sluice_ct6_any", CTName(true, unix.IPPROTO_UDP))
	require.Equal(t, "out,related", Related.String())
	require.Equal(t, "in,service,0x40", (In | Service | 0x40).String())
	require.Equal(t, "seen-non-syn,0x8000", (SeenNonSYN | 0x8000).String())
	require.Equal(t, "-", EntryFlags(0).String())
	require.Equal(t, "gateway=- generation=7 flags=tx-closing packets=1 bytes=60 lifetime=9",
		Entry{Generation: 7, Flags: TxClosing, Packets: 1, Bytes: 60, Lifetime: 9}.String())
	require.Equal(t, "protocol-47 10.0.0.1:0 -> 10.0.0.2:0 out", tuple(47, "10.0.0.1:0", "10.0.0.2:0", Out).String())
}
