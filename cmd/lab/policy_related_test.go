// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// ICMP errors about what is allowed pass, whatever policies say of the way back;
// others do not.
func (p *policyTest) relatedErrors() {
	p.enforce(closedAround)
	p.enforce(ingressPolicy("web", closedPort))
	for _, server := range []string{"near", "far"} {
		for _, c := range p.callsOf(fmt.Sprintf("client %s udp/%d", server, closedPort)) {
			ctx, cancel := context.WithTimeout(p.ctx, patience)
			require.ErrorIs(p.t, c.try(ctx), syscall.ECONNREFUSED, "%s", c)
			cancel()
		}
	}
	client, other := p.names["client"], p.names["other"]
	position := p.drops.position()
	require.NoError(p.t, sendUnreachable(other.Namespace, ipv4UDP(client.ipv4, other.ipv4, 4000, closedPort, []byte("x"))))
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	e, err := p.drops.next(ctx, position, func(e dropEvent) bool {
		return e.Source.Addr == other.ipv4 && e.Destination.Addr == client.ipv4
	})
	require.NoError(p.t, err, "an ICMP error about nothing")
	require.Equal(p.t, reasonDefault, e.Reason, e.text)
	require.Equal(p.t, bpf.DirectionIngress.String(), e.Direction, e.text)
}

// sendUnreachable says to the sender of an IPv4 packet that its port is unreachable.
func sendUnreachable(n *Namespace, about []byte) error {
	message := append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, about[:28]...)
	binary.BigEndian.PutUint16(message[2:], checksum(message))
	return n.Run(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Addr: [4]byte(about[12:16])})
	})
}

// A router outside tells a pod, whose policies allow nothing to come in, how large
// packets may be.
func (p *policyTest) relatedTooBig() {
	far := newFarWorld(p.traffic)
	p.enforce(`
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: far, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: client}}
  ingress: [{fromEndpoints: []}]
  egress: [{toCIDR: [192.0.2.0/24, "2001:db8:52::/64"]}]
`)
	client := p.names["client"]
	far4, far6 := far.fresh()
	for _, to := range []netip.Addr{far4, far6} {
		headers := 28
		if to.Is6() {
			headers = 48
		}
		probe, err := newProbe(client.Namespace, netip.AddrPortFrom(to, Port))
		require.NoError(p.t, err)
		defer probe.close()
		require.NoError(p.t, probe.fragment(false))
		require.NoError(p.t, probe.send(farMTU-headers+1))
		got, err := probe.complaint(patience)
		require.NoError(p.t, err, "to %s", to)
		require.Equal(p.t, unix.EMSGSIZE, got.errno, "to %s: %v", to, got)
		require.EqualValues(p.t, farMTU, got.info, "to %s: %v", to, got)
	}
	p.check("client near tcp/80 egress\nnear client tcp/80 ingress")
}
