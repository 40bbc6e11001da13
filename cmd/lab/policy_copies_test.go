// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A node reaches its pods also while its bridge has forgotten where they are, and sends copies to
// all its ports.
func TestPolicyBridgeCopies(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{BridgeCNI: true})
	n, near := p.Nodes[0], p.names["near"]
	p.enforce(isolatedNear)
	for _, network := range []string{"tcp", "udp"} {
		for _, to := range []netip.Addr{near.ipv4, near.ipv6} {
			err := n.handle.NeighDel(&vn.Neigh{
				Family: unix.AF_BRIDGE, Flags: vn.NTF_MASTER, LinkIndex: p.ifIndexOf(n, "near"),
				HardwareAddr: macOf(t, near.Namespace),
			})
			if !errors.Is(err, unix.ENOENT) {
				require.NoError(t, err)
			}
			ctx, cancel := context.WithTimeout(p.ctx, patience)
			_, err = n.Ask(ctx, network, to)
			cancel()
			require.NoError(t, err, "%s to %s", network, to)
		}
	}
}

const isolatedNear = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress]}
`
