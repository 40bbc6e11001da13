// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

func TestStates(t *testing.T) {
	const both = RxClosing | TxClosing
	for _, test := range []struct {
		protocol Protocol
		entry    Entry
		want     State
	}{
		{unix.IPPROTO_TCP, Entry{Lifetime: 100}, SYN},
		{unix.IPPROTO_TCP, Entry{Lifetime: 100, RxFlagsSeen: 0x12}, SYN}, // SYN and ACK: not established yet
		{unix.IPPROTO_TCP, Entry{Lifetime: 101, Flags: SeenNonSYN}, Established},
		{unix.IPPROTO_TCP, Entry{Lifetime: 101, Flags: SeenNonSYN | ToService | FromTunnel}, Established},
		{unix.IPPROTO_TCP, Entry{Lifetime: 101, Flags: SeenNonSYN | TxClosing}, Closing},
		{unix.IPPROTO_TCP, Entry{Lifetime: 101, Flags: SeenNonSYN | RxClosing}, Closing},
		{unix.IPPROTO_TCP, Entry{Lifetime: 101, Flags: SeenNonSYN | both}, Closed},
		{unix.IPPROTO_TCP, Entry{Lifetime: 101, Flags: both}, Closed}, // RST to a SYN
		{unix.IPPROTO_TCP, Entry{Lifetime: 99, Flags: SeenNonSYN}, Expired},
		{unix.IPPROTO_TCP, Entry{Lifetime: 0, Flags: SeenNonSYN}, Condemned},
		{unix.IPPROTO_UDP, Entry{Lifetime: 101, TxFlagsSeen: 1}, Unreplied},
		{unix.IPPROTO_UDP, Entry{Lifetime: 101, TxFlagsSeen: 1, RxFlagsSeen: 1}, Replied},
		{unix.IPPROTO_ICMPV6, Entry{Lifetime: 101, RxFlagsSeen: 1}, Replied},
		{unix.IPPROTO_UDP, Entry{Lifetime: 99, RxFlagsSeen: 1}, Expired},
		{unix.IPPROTO_SCTP, Entry{}, Condemned},
	} {
		require.Equal(t, test.want, test.entry.State(test.protocol, 100), "%s %s", test.protocol, test.entry)
		require.Contains(t, States(), test.want)
	}
}

func exampleRecord() Record {
	return NewRecord(CT4TCP, tuple(unix.IPPROTO_TCP, "10.0.0.1:258", "192.0.2.7:772", Out), Entry{
		Gateway: bpf.AddressFrom(netip.MustParseAddr("10.9.9.9")), Packets: 3, Bytes: 180, Lifetime: 8095,
		Flags: SeenNonSYN | ToService, Generation: 7, Cookie: 11, Created: 95,
	}, 100)
}

func TestRecordAsText(t *testing.T) {
	require.Equal(t, "tcp 10.0.0.1:258 -> 192.0.2.7:772 out established age=5s expires=7995s packets=3 bytes=180 "+
		"gateway=10.9.9.9 generation=7 cookie=11 flags=seen-non-syn,service", exampleRecord().String())
	expired := NewRecord(CT6Any, tuple(unix.IPPROTO_UDP, "[2001:db8::1]:53", "[2001:db8::2]:53", In|Related), Entry{Lifetime: 97}, 100)
	require.Equal(t, "udp [2001:db8::1]:53 -> [2001:db8::2]:53 in,related expired age=- expires=-3s packets=0 bytes=0 "+
		"gateway=- generation=0 cookie=0 flags=-", expired.String())
	require.True(t, expired.Expired())
	example := exampleRecord()
	condemned := NewRecord(CT4TCP, example.Tuple(), Entry{Created: 105}, 100)
	require.Contains(t, condemned.String(), " condemned age=0s expires=- ")
	require.Zero(t, condemned.ExpiresInSeconds)
	require.True(t, condemned.Expired())
}

func TestRecordAsJSON(t *testing.T) {
	r := exampleRecord()
	b, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"map":"sluice_ct4_tcp","source":"10.0.0.1:258","destination":"192.0.2.7:772","protocol":"tcp",
		"direction":"out","state":"established","flags":["seen-non-syn","service"],"packets":3,"bytes":180,
		"gateway":"10.9.9.9","generation":7,"cookie":11,"ageSeconds":5,"expiresInSeconds":7995}`, string(b))

	r = NewRecord(CT6Any, tuple(47, "[2001:db8::1]:0", "[2001:db8::2]:0", In|Related|0x40), Entry{Lifetime: 90}, 100)
	b, err = json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"map":"sluice_ct6_any","source":"[2001:db8::1]:0","destination":"[2001:db8::2]:0","protocol":"protocol-47",
		"direction":"in","tupleFlags":["related","0x40"],"state":"expired","packets":0,"bytes":0,
		"generation":0,"cookie":0,"ageSeconds":-1,"expiresInSeconds":-10}`, string(b))
	var back Record
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, r, back)
	require.Equal(t, tuple(47, "[2001:db8::1]:0", "[2001:db8::2]:0", In|Related|0x40), back.Tuple())
	require.Equal(t, r.String(), back.String())
}

func TestTupleFlags(t *testing.T) {
	for f := range 256 {
		f := TupleFlags(f)
		require.Equal(t, f, ParseTupleFlags(f.Direction(), f.Others()), f)
	}
	require.Equal(t, In, ParseTupleFlags(DirectionIn, []string{"other"}))
}

func TestCompare(t *testing.T) {
	a := tuple(6, "10.0.0.1:1", "10.0.0.2:1", Out)
	for _, b := range []Tuple{
		tuple(6, "10.0.0.1:2", "10.0.0.2:1", Out), tuple(6, "10.0.0.2:1", "10.0.0.1:1", Out),
		tuple(6, "10.0.0.1:1", "10.0.0.2:2", Out), tuple(17, "10.0.0.1:1", "10.0.0.2:1", Out), tuple(6, "10.0.0.1:1", "10.0.0.2:1", In),
	} {
		require.Negative(t, a.Compare(b), b)
		require.Positive(t, b.Compare(a), b)
	}
	require.Zero(t, a.Compare(a))
}
