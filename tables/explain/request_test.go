// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"slices"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func TestErrors(t *testing.T) {
	w := newWorld(t, inMemory(t))
	for _, tc := range []struct{ from, to, port, protocol, message string }{
		{"", "shop/web", "80", "", "from: want namespace/pod, an address, or an entity"},
		{"shop/web", "shop/none", "80", "", "to: there is no pod shop/none with an address of its own: the table endpoints has all"},
		{"shop/pending", "shop/web", "80", "", "from: pod shop/pending has no address"},
		{"moon", "shop/web", "80", "", `from: "moon" is no namespace/pod, no address, and no entity: host, remote-node, world, `},
		{"all", "shop/web", "80", "", "from: all matches everything: name a single party"},
		{"world-ipv6", "shop/db", "80", "", `to: "shop/db" has no address of the family of "world-ipv6"`},
		{"world", "shop/web", "", "", "port: want a port, as in 80 or 53/udp"},
		{"world", "shop/web", "65536", "", `port: "65536" is no port: want 0 to 65535`},
		{"world", "shop/web", "https", "", `port: shop/web has no port named "https" for tcp`},
		{"world", "shop/web", "80", "tcpp", `protocol: unknown protocol "tcpp"`},
		{"world", "shop/web", "80/udp", "tcp", `protocol: "tcp" and "80/udp" are two protocols`},
		{"world", "shop/web", "80/gre", "", "port: gre has no ports"},
		{"world", "shop/web", "256/icmp", "", `port: "256" is no type of ICMP`},
		{"world", "shop/web", "8/icmpv6", "", "protocol: icmpv6 is of IPv6: want icmp"},
		{"world-ipv6", "shop/web", "8/icmp", "", "protocol: icmp is of IPv4: want icmpv6"},
	} {
		_, err := w.Policy(tc.from, tc.to, tc.port, tc.protocol)
		require.ErrorContains(t, err, tc.message)
		require.ErrorAs(t, err, &Error{})
	}
	_, err := w.Egress("world", "8.8.8.8")
	require.ErrorContains(t, err, "from: world is no single address")
}

func TestParseTraffic(t *testing.T) {
	for _, tc := range []struct {
		port, protocol string
		want           Traffic
	}{
		{"80", "", Traffic{Protocol: 6, Port: 80}},
		{"53", "UDP", Traffic{Protocol: 17, Port: 53}},
		{"53/udp", "udp", Traffic{Protocol: 17, Port: 53}},
		{"http/sctp", "", Traffic{Protocol: 132, Name: "http"}},
		{"icmp:8", "", Traffic{Protocol: 1, Port: 8}},
		{"128/icmpv6", "", Traffic{Protocol: 58, Port: 128}},
		{"gre", "", Traffic{Protocol: 47}},
		{"", "47", Traffic{Protocol: 47}},
		{"0/200", "", Traffic{Protocol: 200}},
	} {
		got, err := ParseTraffic(tc.port, tc.protocol)
		require.NoError(t, err, tc)
		require.Equal(t, tc.want, got, tc)
	}
}

func TestSeveralPortsOfAName(t *testing.T) {
	w := newWorld(t, inMemory(t))
	pod, _, _ := w.Endpoints.Get(w.DB.ReadTxn(), tables.EndpointByName(name("shop/web")))
	both := *pod
	set := *pod.LabelSet
	set.NamedPorts = append(slices.Clone(set.NamedPorts), tables.NamedPort{Name: "http", Protocol: 6, Port: 8080})
	both.LabelSet = &set
	tablestest.Insert(w.t, w.DB, w.Endpoints, &both)
	_, err := w.Policy("shop/client", "shop/web", "http", "")
	require.EqualError(t, err, `port: shop/web has several ports named "http" for tcp: ask for one of 80, 8080`)
	_, err = w.Policy("shop/client", "shop/web", "8080", "")
	require.NoError(t, err)
}

func TestNotReady(t *testing.T) {
	w := newWorld(t, inMemory(t))
	wtxn := w.DB.WriteTxn(w.Pods, w.IPCache)
	pods := w.Pods.(statedb.RWTable[*tables.Pod]).RegisterInitializer(wtxn, "test")
	ipcache := w.IPCache.(statedb.RWTable[*tables.IPCache]).RegisterInitializer(wtxn, "test")
	wtxn.Commit()
	const reason = "the agent is not ready: not complete yet: ipcache, pods"
	_, err := w.Policy("shop/client", "shop/web", "80", "")
	require.ErrorIs(t, err, ErrNotReady)
	require.EqualError(t, err, reason)
	_, err = w.Egress("shop/client", "203.0.113.9")
	require.EqualError(t, err, reason)
	wtxn = w.DB.WriteTxn(w.Pods, w.IPCache)
	pods(wtxn)
	ipcache(wtxn)
	wtxn.Commit()
	_, err = w.Policy("shop/client", "shop/web", "80", "")
	require.NoError(t, err)
}
