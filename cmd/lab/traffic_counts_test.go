// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// countsTraffic asserts that all that a node has translated is counted for some policy and egress
// address in its table egress-traffic, and what came back as well. Replies to pods of the node
// itself count as those from other gateways do.
func (tr *traffic) countsTraffic(n *Node) {
	tr.t.Helper()
	check := func(rows []tables.EgressTraffic) error {
		var sent, received uint64
		for _, row := range rows {
			sent += row.SentPackets
			received += row.ReceivedPackets
		}
		translated := tr.count(n, bpf.ReasonTranslated)
		toNodes, here := tr.count(n, bpf.ReasonReplyOverlay), tr.count(n, bpf.ReasonReplyLocal)
		if sent != translated || received < toNodes || received > toNodes+here {
			return fmt.Errorf("%d of %d packets sent, %d received of %d to other nodes and %d here: %v",
				sent, translated, received, toNodes, here, rows)
		}
		return nil
	}
	require.NoError(tr.t, AwaitRows(tr.ctx, n.Agent, "egress-traffic", check))
}
