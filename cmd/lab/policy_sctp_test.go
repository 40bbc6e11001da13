// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// sctpPort is the port of all who begin associations here: no two do at a time.
const sctpPort = 36412

// listenSCTP opens a socket that gets all packets of SCTP to an address, as the kernel
// need not know the protocol.
func (n *Namespace) listenSCTP(at netip.Addr) (conn *net.IPConn, err error) {
	network := "ip4:132"
	if at.Is6() {
		network = "ip6:132"
	}
	err = n.Run(func() error {
		conn, err = net.ListenIP(network, &net.IPAddr{IP: at.AsSlice()})
		return err
	})
	return conn, err
}

// answerSCTP answers whatever begins an association with an address, until the test ends.
func (p *policyTest) answerSCTP(n *Namespace, at netip.Addr) {
	p.t.Helper()
	conn, err := n.listenSCTP(at)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { conn.Close() })
	go func() {
		packet := make([]byte, 256)
		for {
			size, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			if src, dst, chunk := parseSCTP(packet[:size]); chunk == packettest.SCTPInit {
				_, _ = conn.WriteTo(sctp(dst, src, packettest.SCTPInitAck), from) // who does not get it says so
			}
		}
	}()
}

func sctp(src, dst uint16, chunk uint8) []byte {
	return packettest.Build(packettest.SCTP{Src: src, Dst: dst}, packettest.SCTPBegin(chunk, 7))
}

// parseSCTP returns the ports and the first chunk of a packet.
func parseSCTP(b []byte) (src, dst uint16, chunk uint8) {
	if len(b) < 13 {
		return 0, 0, 0
	}
	return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), b[12]
}

// associate begins an association, and returns no error when there is an answer.
func (c call) associate(ctx context.Context) error {
	conn, err := c.from.listenSCTP(c.from.addr(c.v6))
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := conn.WriteTo(sctp(sctpPort, c.port, packettest.SCTPInit), &net.IPAddr{IP: c.to.addr(c.v6).AsSlice()}); err != nil {
		return err
	}
	packet := make([]byte, 256)
	for {
		size, _, err := conn.ReadFrom(packet) // which takes the header of IPv4 away
		if err != nil {
			return err
		}
		if src, dst, chunk := parseSCTP(packet[:size]); src == c.port && dst == sctpPort && chunk == packettest.SCTPInitAck {
			return nil
		}
	}
}

// Ports of SCTP are judged as those of TCP and UDP, by rules of their own.
func TestPolicySCTP(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{})
	for _, name := range []string{"near", "far", "other"} {
		for _, v6 := range []bool{false, true} {
			at := p.names[name]
			p.answerSCTP(at.Namespace, at.addr(v6))
		}
	}
	const open = `
client near  sctp/80 allowed
client far   sctp/81 allowed
client other sctp/80 allowed
`
	p.check(open)
	p.enforce(closedAround)
	p.enforce(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 80, protocol: SCTP}]
`)
	allow := p.enforce(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: calls, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - ports: [{port: 80, endPort: 81, protocol: SCTP}]
`)
	p.check(`
client near  sctp/80 allowed
client far   sctp/80 allowed
client other sctp/81 allowed
client near  sctp/81 ingress NetworkPolicy/shop/web
client far   sctp/81 ingress NetworkPolicy/shop/web
other  near  sctp/80 ingress NetworkPolicy/shop/web
client near  sctp/82 egress NetworkPolicy/shop/calls
client near  tcp/80  egress NetworkPolicy/shop/calls
other  far   udp/80  ingress NetworkPolicy/shop/web
near   other sctp/80 egress NetworkPolicy/shop/server-says-replies-only
`)
	p.withdraw(allow...)
	p.check("client near tcp/80 ingress NetworkPolicy/shop/web\nclient far sctp/80 allowed")
}
