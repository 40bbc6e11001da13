// SPDX-License-Identifier: Apache-2.0

package natmap

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

func tuple(protocol uint8, from, to string, flags ctmap.TupleFlags) ctmap.Tuple {
	return ctmap.Tuple{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to), Protocol: protocol, Flags: flags}
}

// A packet from A:p to B:q has daddr B, saddr A, dport q, sport p.
func TestKeyBytes(t *testing.T) {
	out := tuple(unix.IPPROTO_TCP, "10.0.0.1:258", "192.0.2.7:772", ctmap.Out)
	key := NewKey4(out)
	require.Equal(t, []byte{192, 0, 2, 7, 10, 0, 0, 1, 3, 4, 1, 2, 6, 0}, unsafe.Slice((*byte)(unsafe.Pointer(&key)), unsafe.Sizeof(key)))
	require.Equal(t, out, key.Tuple())

	in6 := tuple(unix.IPPROTO_UDP, "[2001:db8::1]:1000", "[2001:db8::2]:53", ctmap.In)
	require.Equal(t, in6, NewKey6(in6).Tuple())
	require.Equal(t, "udp [2001:db8::1]:1000 -> [2001:db8::2]:53 in", NewKey6(in6).String())
	require.Equal(t, "to=192.0.2.1:1024 tunnel=-", Entry4{Addr: [4]byte{192, 0, 2, 1}, Port: ctmap.PortFrom(1024)}.String())
}
