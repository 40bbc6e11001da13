// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func prefixes(list ...string) (p []netip.Prefix) {
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

func TestMatch(t *testing.T) {
	r := exampleRecord() // tcp 10.0.0.1:258 -> 192.0.2.7:772 out established
	for name, test := range map[string]struct {
		match Match
		want  bool
	}{
		"nothing said":         {Match{}, true},
		"source":               {Match{Prefixes: prefixes("10.0.0.0/8")}, true},
		"destination":          {Match{Prefixes: prefixes("192.0.2.7/32")}, true},
		"one of prefixes":      {Match{Prefixes: prefixes("10.1.0.0/16", "192.0.2.0/24")}, true},
		"no address":           {Match{Prefixes: prefixes("10.0.0.2/32", "2001:db8::/32")}, false},
		"everything of IPv6":   {Match{Prefixes: prefixes("::/0")}, false},
		"source port":          {Match{Ports: []uint16{258}}, true},
		"destination port":     {Match{Ports: []uint16{1, 772}}, true},
		"no port":              {Match{Ports: []uint16{257}}, false},
		"protocol":             {Match{Protocols: []Protocol{17, 6}}, true},
		"no protocol":          {Match{Protocols: []Protocol{17}}, false},
		"state":                {Match{States: []State{SYN, Established}}, true},
		"no state":             {Match{States: []State{Closed}}, false},
		"direction":            {Match{Directions: []Direction{DirectionOut}}, true},
		"no direction":         {Match{Directions: []Direction{DirectionIn}}, false},
		"not expired":          {Match{Expired: true}, false},
		"all fields":           {Match{Prefixes: prefixes("10.0.0.1/32"), Ports: []uint16{772}, Protocols: []Protocol{6}, States: []State{Established}, Directions: []Direction{DirectionOut}}, true},
		"one field is another": {Match{Prefixes: prefixes("10.0.0.1/32"), Ports: []uint16{771}, Protocols: []Protocol{6}}, false},
	} {
		require.Equal(t, test.want, test.match.Record(&r), name)
		require.Equal(t, name == "nothing said", test.match.Empty(), name)
	}
	var none *Match
	require.True(t, none.Record(&r))
	require.True(t, none.Empty())
	require.True(t, none.Tuple(r.Tuple()))
	require.True(t, none.State(Condemned))

	expired := Match{Expired: true}
	require.True(t, expired.State(Expired))
	require.True(t, expired.State(Condemned))
	expired.States = []State{Condemned}
	require.False(t, expired.State(Expired))

	// What a translation is to counts too, and the port need not be with the address.
	to := netip.MustParseAddrPort("198.51.100.1:4000")
	egress := Match{Prefixes: prefixes("198.51.100.0/24"), Ports: []uint16{258}}
	require.False(t, egress.Tuple(r.Tuple()))
	require.True(t, egress.Tuple(r.Tuple(), to))
	mapped := tuple(6, "[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.2]:2", Out)
	require.True(t, (&Match{Prefixes: prefixes("10.0.0.1/32")}).Tuple(mapped))
}

func TestMatchAsJSON(t *testing.T) {
	m := Match{Prefixes: prefixes("10.0.0.0/8"), Ports: []uint16{80}, Protocols: []Protocol{unix.IPPROTO_TCP, 47},
		States: []State{SYN}, Directions: []Direction{DirectionIn}, Expired: true}
	b, err := json.Marshal(m)
	require.NoError(t, err)
	require.JSONEq(t, `{"prefixes":["10.0.0.0/8"],"ports":[80],"protocols":["tcp","protocol-47"],"states":["syn"],"directions":["in"],"expired":true}`, string(b))
	var back Match
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, m, back)
	for _, bad := range []string{`{"states":["open"]}`, `{"protocols":["tpc"]}`, `{"directions":["both"]}`, `{"prefixes":["10.0.0.0/33"]}`, `{"ports":[65536]}`} {
		require.Error(t, json.Unmarshal([]byte(bad), &back), bad)
	}
	b, err = json.Marshal(Match{})
	require.NoError(t, err)
	require.Equal(t, "{}", string(b))
}

func TestParse(t *testing.T) {
	for text, want := range map[string]Protocol{"tcp": 6, "UDP": 17, "sctp": 132, "icmp": 1, "ICMPv6": 58, "47": 47, "protocol-47": 47, "6": 6, "0": 0} {
		p, err := ParseProtocol(text)
		require.NoError(t, err, text)
		require.Equal(t, want, p, text)
		again, err := ParseProtocol(p.String())
		require.NoError(t, err)
		require.Equal(t, p, again)
	}
	for _, state := range States() {
		s, err := ParseState(strings.ToUpper(string(state)))
		require.NoError(t, err)
		require.Equal(t, state, s)
	}
	d, err := ParseDirection("In")
	require.NoError(t, err)
	require.Equal(t, DirectionIn, d)
	port, err := ParsePort("65535")
	require.NoError(t, err)
	require.EqualValues(t, 65535, port)
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1/32", "10.0.0.0/8": "10.0.0.0/8", "2001:db8::1": "2001:db8::1/128", "::/0": "::/0",
		"::ffff:10.0.0.1": "10.0.0.1/32", "::ffff:10.0.0.0/104": "10.0.0.0/8",
	} {
		p, err := ParsePrefix(text)
		require.NoError(t, err, text)
		require.Equal(t, netip.MustParsePrefix(want), p, text)
	}
}

func TestParseErrors(t *testing.T) {
	protocol := func(s string) error { _, err := ParseProtocol(s); return err }
	state := func(s string) error { _, err := ParseState(s); return err }
	direction := func(s string) error { _, err := ParseDirection(s); return err }
	port := func(s string) error { _, err := ParsePort(s); return err }
	prefix := func(s string) error { _, err := ParsePrefix(s); return err }
	for _, test := range []struct {
		parse      func(string) error
		text, want string
	}{
		{protocol, "tpc", `protocol "tpc": want tcp, udp, sctp, icmp, icmpv6 or a number from 0 to 255`},
		{protocol, "256", `protocol "256": want tcp, `},
		{protocol, "-1", `protocol "-1": want tcp, `},
		{protocol, "", `protocol "": want tcp, `},
		{state, "open", `state "open": want syn, established, closing, closed, unreplied, replied, expired, condemned`},
		{direction, "", `direction "": want out, in`},
		{port, "65536", `port "65536": want a number from 0 to 65535`},
		{port, "http", `port "http": want a number`},
		{prefix, "10.0.0", `address "10.0.0": want an IPv4 or IPv6 address or prefix`},
		{prefix, "10.0.0.1/8", `address "10.0.0.1/8": has bits behind its prefix: want 10.0.0.0/8`},
		{prefix, "10.0.0.0/33", `address "10.0.0.0/33": want`},
		{prefix, "fe80::1%eth0", `address "fe80::1%eth0": want`},
		{prefix, "", `address "": want`},
	} {
		require.ErrorContains(t, test.parse(test.text), test.want)
	}
}
