// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// gatewayOf is a pod whose gateway this node is: one of its own, or of another node.
type gatewayOf struct {
	*fixture
	transport string
	pod       netip.Addr
}

// eachGatewayOf runs a test for pods here and elsewhere, that a policy gives an
// address here.
func eachGatewayOf(t *testing.T, test func(g gatewayOf)) {
	for _, where := range []string{"here", "elsewhere"} {
		t.Run(where, func(t *testing.T) {
			eachTransport(t, func(f *fixture, transport string) {
				f.selected(f.Here(f.Egress))
				require.NoError(f, f.SetRemotePod(f.RemotePod))
				g := gatewayOf{f, transport, f.Pod}
				if where == "elsewhere" {
					g.pod = f.RemotePod
				}
				test(g)
			})
		})
	}
}

func (g gatewayOf) send(layers ...packettest.Layer) *packettest.Result {
	g.Helper()
	if g.pod == g.RemotePod {
		return g.fromOverlay(second(), layers...)
	}
	return g.fromPod(layers...)
}

// first sends what begins a connection.
func (g gatewayOf) first() *packettest.Result {
	g.Helper()
	return g.send(request(g.transport, g.pod, g.Server)...)
}

// next sends more of it.
func (g gatewayOf) next() *packettest.Result {
	g.Helper()
	if g.transport == "TCP" {
		return g.send(tcp(g.pod, g.Server, podPort, serverPort, packettest.ACK)...)
	}
	return g.first()
}

// port is the one that the connection has, and that it keeps if it is free.
func (g gatewayOf) port() uint16 { return connectionOf(g.transport, g.pod, g.Server).Sport }

// answer has the server answer to an address and port, and asserts that the pod
// gets it.
func (g gatewayOf) answer(to netip.Addr, port uint16) {
	g.Helper()
	res := g.fromNetdev(response(g.transport, g.Server, to, port)...)
	var p *packettest.Packet
	if g.pod == g.RemotePod {
		p = g.toGateway(res, second())
	} else {
		p = g.delivered(res)
	}
	require.Equal(g, g.pod, p.Dst)
	require.Equal(g, g.port(), destinationPortOf(p, g.transport))
}

// TestTranslationOfBefore: a connection with the ports of one that is over gets the
// address that the rules give now. What goes on keeps the one that it has.
func TestTranslationOfBefore(t *testing.T) {
	eachGatewayOf(t, func(g gatewayOf) {
		g.translated(g.first(), g.Egress)
		g.answer(g.Egress, g.port())
		g.age(10)
		require.NoError(g, g.SetGateway(packettest.Group, g.Here(g.SharedEgress)))
		g.translated(g.next(), g.Egress)
		if g.transport == "TCP" { // it was silent for long; this is not how one begins
			g.expire()
			g.translated(g.next(), g.Egress)
		}

		g.expire()
		given := portOf(g.translated(g.first(), g.SharedEgress), g.transport)
		require.Nil(g, g.translation(inTuple(g.transport, g.Server, g.Egress, g.port())), "the record of the old one is gone")
		g.answer(g.SharedEgress, given)

		// One that is new has no entry yet: another CPU may be about to make it.
		require.NoError(g, g.SetGateway(packettest.Group, g.Here(g.Egress)))
		g.age(-3600)
		g.expire()
		require.Equal(g, given, portOf(g.translated(g.first(), g.SharedEgress), g.transport))
	})
}

// TestTranslationOfBeforeWithoutPolicy: nor does the record of one that is over serve
// a connection that no policy selects any more.
func TestTranslationOfBeforeWithoutPolicy(t *testing.T) {
	eachGatewayOf(t, func(g gatewayOf) {
		g.translated(g.first(), g.Egress)
		g.age(10)
		g.expire()
		if g.pod == g.RemotePod {
			require.NoError(g, g.RemovePod(g.pod))
			g.dropped(g.first(), bpf.ReasonNoRule)
			return
		}
		g.subject(packettest.Plain, packettest.Generation+2)
		g.checked(g.first())
	})
}

// TestTranslationAfterSYN: a SYN on a connection that is not known to have ended, as
// its pod was killed, begins another one, for which the rules are those of now.
func TestTranslationAfterSYN(t *testing.T) {
	eachGatewayOf(t, func(g gatewayOf) {
		if g.transport != "TCP" {
			g.Skip("of TCP only")
		}
		g.translated(g.first(), g.Egress)
		g.answer(g.Egress, g.port())
		g.translated(g.next(), g.Egress)
		g.age(10)
		require.NoError(g, g.SetGateway(packettest.Group, g.Here(g.SharedEgress)))
		g.translated(g.next(), g.Egress)
		given := g.translated(g.first(), g.SharedEgress).SrcPort
		require.Equal(g, given, g.translated(g.next(), g.SharedEgress).SrcPort)
		g.answer(g.SharedEgress, given)
	})
}

// TestTranslationRecordLost: a full map loses its least recently used entries. The
// connection's next packet makes them again, with the port that it had.
func TestTranslationRecordLost(t *testing.T) {
	eachGatewayOf(t, func(g gatewayOf) {
		out, in := outTuple(g.transport, g.pod, g.Server), inTuple(g.transport, g.Server, g.Egress, g.port())
		g.translated(g.first(), g.Egress)
		g.answer(g.Egress, g.port())
		for name, lost := range map[string][]packettest.Tuple{"for replies": {in}, "for packets": {out}, "both": {in, out}} {
			for _, seconds := range []int64{0, 10} {
				g.age(seconds)
				for _, tuple := range lost {
					require.NoError(g, g.DeleteTranslation(tuple))
				}
				require.Equal(g, g.port(), portOf(g.translated(g.next(), g.Egress), g.transport), name)
				g.answer(g.Egress, g.port())
				require.NotNil(g, g.translation(in), name)
				require.NotNil(g, g.translation(out), name)
			}
		}
	})
}

// TestReplyUsesTranslation: a reply is a use of the translation, and of its connection,
// also where a full map has lost that: the garbage collection must not take what
// replies come by for that of no pod.
func TestReplyUsesTranslation(t *testing.T) {
	eachGatewayOf(t, func(g gatewayOf) {
		in, key := inTuple(g.transport, g.Server, g.Egress, g.port()), connectionOf(g.transport, g.pod, g.Server)
		g.translated(g.first(), g.Egress)
		for _, lost := range []bool{false, true} {
			g.age(10)
			before := g.translation(in).Used
			if lost {
				for _, name := range []string{"sluice_ct4_tcp", "sluice_ct4_any", "sluice_ct6_tcp", "sluice_ct6_any"} {
					require.NoError(g, g.Clear(name))
				}
			}
			g.answer(g.Egress, g.port())
			require.Greater(g, g.translation(in).Used, before, "lost: %v", lost)
			c := g.connection(key)
			require.NotNil(g, c, "lost: %v", lost)
			require.Greater(g, c.Lifetime, uptime(g), "lost: %v", lost)
		}
		if g.pod == g.RemotePod {
			require.EqualValues(g, ctmap.FromTunnel, g.connection(key).Flags&uint16(ctmap.FromTunnel))
		}
		g.translated(g.next(), g.Egress)
	})
}

// TestReplyRenews: a reply that comes when the connection has expired renews it. What
// says that it is over does not, for another node's pod.
func TestReplyRenews(t *testing.T) {
	eachGatewayOf(t, func(g gatewayOf) {
		key := connectionOf(g.transport, g.pod, g.Server)
		g.translated(g.first(), g.Egress)
		g.expire()
		g.answer(g.Egress, g.port())
		require.Greater(g, g.connection(key).Lifetime, uptime(g))
		if g.transport != "TCP" || g.pod != g.RemotePod {
			return
		}
		for _, flags := range []uint8{packettest.FIN | packettest.ACK, packettest.RST} {
			g.expire()
			g.toGateway(g.fromNetdev(tcp(g.Server, g.Egress, serverPort, g.port(), flags)...), second())
			require.Less(g, g.connection(key).Lifetime, uptime(g))
		}
	})
}
