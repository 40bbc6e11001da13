// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// blockSize is how many ports the blocks of TestTrafficPortBlocks have.
const blockSize = 64

// TestTrafficPortBlocks: a node wants another block of ports when pods use more than half of what
// it has, before those are used up. Connections go on when a block is closed, and new ones get
// no ports of it.
func TestTrafficPortBlocks(t *testing.T) {
	t.Parallel()
	m := newMoving(t, time.Second, "--port-share=0")
	addr := hostOf(OutsideIPv4, 201)
	node := m.Nodes[0]
	give := func(blocks ...string) {
		t.Helper()
		pool := fmt.Sprintf(`
apiVersion: sluice.io/v1alpha1
kind: EgressIPPool
metadata: {name: small}
spec: {cidrs: ["%s/32"], nodeSelector: {matchLabels: {egress: "yes"}}, portsPerBlock: %d}
status:
  blocks:
`, addr, blockSize)
		for _, b := range blocks {
			pool += fmt.Sprintf("  - {node: %s, %s}\n", node.Name, b)
		}
		require.NoError(t, m.ApplyYAML(pool))
	}
	wants := func(has, blocks int) {
		t.Helper()
		require.NoError(t, AwaitRows(m.ctx, node.Agent, "egress-port-demand",
			func(rows []tables.EgressPortDemand) error {
				for _, row := range rows {
					if row.Pool == "small" && row.Has == has && row.Blocks == blocks {
						return nil
					}
				}
				return fmt.Errorf("%+v", rows)
			}))
	}
	give("index: 5")
	require.NoError(t, m.ApplyYAML(fmt.Sprintf(`
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: blocks}
spec:
  selectors: [{podSelector: {matchLabels: {app: b}}}]
  destinationCIDRs: ["%s/32"]
  egressGateway: {nodeSelector: {}, egressIP: "%s"}
`, ServerIPv4, addr)))
	p := m.traffic.pod(node, "b", "b")
	m.inForce([]string{"blocks"}, p)
	m.becomes(p.Namespace, ServerIPv4, addr)
	wants(1, 1)

	var conns []net.Conn
	opens := func(n int, blocks ...int) {
		t.Helper()
		for range n {
			conn := m.dial(p.Namespace, "tcp", ServerIPv4)
			source, err := askSoon(m.ctx, conn)
			require.NoError(t, err)
			require.Equal(t, addr, source.Addr())
			require.Contains(t, blocks, (int(source.Port())-tables.FirstPort)/blockSize)
			conns = append(conns, conn)
		}
	}
	opens(40, 5)
	wants(1, 2)
	give("index: 5", "index: 9")
	wants(2, 2)
	opens(50, 5, 9)
	wants(2, 3)
	give("index: 5", `index: 9, closed: "2025-01-01T00:00:00Z"`, "index: 11", "index: 12")
	wants(3, 3)
	opens(40, 5, 11, 12)
	for _, conn := range conns {
		source, err := askSoon(m.ctx, conn)
		require.NoError(t, err)
		require.Equal(t, addr, source.Addr())
	}
}
