// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
	"github.com/sluice-net/sluice/testdata/await"
)

const (
	soon  = await.Bound            // for what comes
	never = 300 * time.Millisecond // for what is not to come
)

// backendDrop asserts that a drop of what went to a backend is reported. Others may be
// too: answers to what came before it, and what connections of former tests send again.
func (tr *traffic) backendDrop(reason bpf.Reason, cookie uint32, protocol uint8, to netip.AddrPort) {
	tr.Helper()
	events, err := tr.Events()
	require.NoError(tr, err)
	events = slices.DeleteFunc(events, func(e bpf.Event) bool {
		return e.Kind != bpf.EventDrop || e.Program != bpf.ProgramBackstop || e.Protocol != protocol ||
			e.Destination.Addr() != to.Addr() || e.DestPort != [2]byte{byte(to.Port() >> 8), byte(to.Port())}
	})
	require.NotEmpty(tr, events, "no event of the drop")
	e := events[len(events)-1]
	require.Equal(tr, reason, e.Reason)
	require.Equal(tr, cookie, e.Cookie)
	require.Equal(tr, bpf.DirectionEgress, e.Direction)
}

// serviceEntries are the entries of flows by where services have led them.
func (tr *traffic) serviceEntries() (all []packettest.Connection) {
	connections, err := tr.Connections()
	require.NoError(tr, err)
	for t, c := range connections {
		if t.Flags == packettest.ThroughService {
			all = append(all, c)
		}
	}
	return all
}

// TestServices: a policy is asked of where a service has led, whether another pod or
// this host is there; an address of a service says nothing by itself.
func TestServices(t *testing.T) {
	eachBackend(t, 80, func(tr *traffic, network string, protocol uint8, service netip.AddrPort, b backend) {
		if network == "udp" {
			tr.echoUDP(b.open, b.to)
		} else {
			tr.echoTCP(b.open, b.to)
		}
		tr.testService(network, protocol, service, b.to)
	})
}

// backend is where a service leads.
type backend struct {
	to   netip.AddrPort
	open func(func()) // where its sockets are
}

// eachBackend does something with services that lead to another pod and to this host:
// at a port of theirs and the next one, of either family, by either protocol.
func eachBackend(t *testing.T, port uint16, do func(tr *traffic, network string, protocol uint8, service netip.AddrPort, b backend)) {
	tr := newTraffic(t)
	for _, w := range both {
		tr.Addresses = w
		for i, b := range []backend{
			{netip.AddrPortFrom(w.OtherPod, 8000+port), tr.inPod(packettest.OtherPodDevice)},
			{netip.AddrPortFrom(w.NodeIP, 8001+port), tr.onNode},
		} {
			service := netip.AddrPortFrom(w.Service, port+uint16(i))
			tr.translate(w, service.Port(), b.to)
			for network, protocol := range map[string]uint8{"udp": unix.IPPROTO_UDP, "tcp": unix.IPPROTO_TCP} {
				t.Run(w.Family+" "+[]string{"a pod", "this host"}[i]+" "+network, func(t *testing.T) {
					tr := &traffic{&fixture{Node: tr.Node, TB: t, Addresses: w}, tr.pods}
					require.NoError(t, tr.Reset())
					do(tr, network, protocol, service, b)
				})
			}
		}
	}
}

func (tr *traffic) testService(network string, protocol uint8, service, backend netip.AddrPort) {
	allow := func(v bpf.VerdictValue) {
		tr.policy(peerClass, bpf.DirectionEgress, protocol, backend.Port(), 16, v)
	}
	tr.subject(judgedPod, packettest.Generation)
	known := bpf.IPCacheInCluster
	if backend.Addr() == tr.NodeIP {
		known |= bpf.IPCacheNode | bpf.IPCacheHost
	}
	tr.peer(backend.Addr(), peerClass, known)
	tr.policy(0, bpf.DirectionEgress, 0, 0, 0, denyDefault)

	// Denied: nothing gets there.
	c, err := tr.dial(network, tr.Pod, service, never)
	if network == "udp" {
		require.NoError(tr, err)
		defer c.Close()
		require.False(tr, tr.echoed(c, 100, never))
	} else {
		require.ErrorContains(tr, err, "timeout")
	}
	tr.backendDrop(bpf.ReasonPolicyDenied, denyDefault.Cookie, protocol, backend)
	require.Empty(tr, tr.serviceEntries())

	// Allowed, by the port of the backend. The backstop need not be on.
	config := tr.Config
	config.Flags &^= bpf.ConfigBackstop
	require.NoError(tr, tr.SetConfig(config))
	allow(allowRule)
	if network == "tcp" {
		c, err = tr.dial(network, tr.Pod, service, soon)
		require.NoError(tr, err)
		defer c.Close()
	}
	tr.since = uptime(tr)
	for range 3 {
		require.True(tr, tr.echoed(c, 1000, soon))
	}
	entries := tr.serviceEntries()
	require.Len(tr, entries, 1)
	require.EqualValues(tr, packettest.Generation, entries[0].Generation)
	require.Equal(tr, allowRule.Cookie, entries[0].Cookie)
	require.GreaterOrEqual(tr, entries[0].Packets, uint64(3))
	// Acknowledgements may still be on their way.
	require.EventuallyWithT(tr, func(c *assert.CollectT) {
		entries := tr.serviceEntries()
		counted, err := tr.Decided(allowRule.Cookie)
		require.NoError(c, err)
		require.Len(c, entries, 1)
		require.Equal(c, entries[0].Packets, counted.Packets)
	}, soon, 10*time.Millisecond)
	if network == "udp" {
		tr.requireLifetime(&entries[0], packettest.LifetimeAny)
		require.True(tr, tr.echoed(c, 4000, soon), "in fragments")
	} else {
		tr.requireLifetime(&entries[0], packettest.LifetimeTCP)
	}

	// Revoked: cut with the next packet. Allowed again: it goes on.
	_, err = tr.Events()
	require.NoError(tr, err)
	allow(denyRule)
	tr.subject(judgedPod, packettest.Generation+1)
	require.False(tr, tr.echoed(c, 10, never))
	tr.backendDrop(bpf.ReasonPolicyRule, denyRule.Cookie, protocol, backend)
	allow(allowOther)
	if network == "tcp" {
		tr.resumed(c, 10)
	} else {
		require.True(tr, tr.echoed(c, 10, soon))
	}
	entries = tr.serviceEntries()
	require.Len(tr, entries, 1)
	require.EqualValues(tr, packettest.Generation+1, entries[0].Generation)
	require.Equal(tr, allowOther.Cookie, entries[0].Cookie)

	// While it is not known what policies say, it goes on too.
	tr.subject(0, packettest.Generation+2)
	require.True(tr, tr.echoed(c, 10, soon))
}

// resumed asserts that what a connection has not delivered is delivered now.
func (tr *traffic) resumed(c net.Conn, size int) {
	tr.Helper()
	require.NoError(tr, c.SetDeadline(time.Now().Add(soon)))
	got := make([]byte, size)
	_, err := c.Read(got)
	require.NoError(tr, err)
	require.Equal(tr, []byte(packettest.Pattern(size)), got)
}

// TestFragmentsToServices: where fragments are not put together, those without ports
// are dropped.
func TestFragmentsToServices(t *testing.T) {
	tr := newTraffic(t)
	for _, w := range both {
		tr.Addresses = w
		require.NoError(t, tr.Reset())
		tr.onNode(func() { tr.routeTo(w.Service, packettest.OtherPodDevice, packettest.OtherPodMAC) })
		at := netip.AddrPortFrom(w.Service, 9000)
		tr.echoUDP(tr.inPod(packettest.OtherPodDevice), at)
		tr.subject(judgedPod, packettest.Generation)
		tr.policy(0, bpf.DirectionEgress, unix.IPPROTO_UDP, 9000, 16, allowRule)
		config := tr.Config
		config.Flags &^= bpf.ConfigStrictSource // the backend answers with the service's address
		require.NoError(t, tr.SetConfig(config))

		c, err := tr.dial("udp", w.Pod, at, soon)
		require.NoError(t, err)
		defer c.Close()
		require.True(t, tr.echoed(c, 1000, soon))
		_, err = tr.Events()
		require.NoError(t, err)
		require.False(t, tr.echoed(c, 4000, never))
		tr.backendDrop(bpf.ReasonUnknownFragment, 0, unix.IPPROTO_UDP, netip.AddrPortFrom(w.Service, 0))
	}
}

// TestServiceOutside: what a service leads out of the cluster is dropped if an egress rule of
// the pod covers the destination, and passes if that is a rule of others.
func TestServiceOutside(t *testing.T) {
	eachBackend(t, 84, func(
		tr *traffic, network string, protocol uint8, service netip.AddrPort, b backend,
	) {
		if network != "udp" || b.to.Addr() != tr.OtherPod {
			return
		}
		tr.echoUDP(b.open, b.to)
		outside := netip.PrefixFrom(b.to.Addr(), b.to.Addr().BitLen())
		require.NoError(t, tr.SetIPCache(outside, 0, netip.Addr{}))
		require.NoError(t, tr.Cover(outside))
		require.NoError(t, tr.SetEgress(packettest.EgressRuleset, outside, packettest.Group))
		tr.policy(0, bpf.DirectionEgress, 0, 0, 0, allowRule)
		tr.subject(judgedPod, packettest.Generation)
		c, err := tr.dial(network, tr.Pod, service, soon)
		require.NoError(t, err)
		defer c.Close()
		require.True(t, tr.echoed(c, 100, soon))

		tr.subject(judgedRouted, packettest.Generation+1)
		require.False(t, tr.echoed(c, 100, never))
		tr.backendDrop(bpf.ReasonServiceOutside, allowRule.Cookie, protocol, b.to)

		require.NoError(t, tr.SetEgress(packettest.EgressRuleset, outside, bpf.GroupExcluded))
		require.True(t, tr.echoed(c, 100, soon))
	})
}
