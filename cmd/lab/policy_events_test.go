// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/tables"
)

// Agents name the rule of what is dropped, and count what each rule decides.
func TestPolicyEvents(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{})
	p.enforce(ingressPolicy("web", 80) + `
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: guard, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: server}}
  enableDefaultDeny: {ingress: false}
  ingressDeny:
  - fromEndpoints: [{matchLabels: {app: nobody}}]
  - fromEndpoints: [{matchLabels: {app: other}}]
    toPorts: [{ports: [{port: "81"}]}]
`)
	const datagrams = 7
	for _, test := range []struct {
		call, rule string
		want       verdict
	}{
		{"client near udp4/80", "NetworkPolicy/shop/web spec.ingress[0]", isAllowed},
		{"client far udp6/80", "NetworkPolicy/shop/web spec.ingress[0]", isAllowed},
		{"client far udp4/81", "NetworkPolicy/shop/web spec.ingress", isDropped},
		{"other near udp6/80", "NetworkPolicy/shop/web spec.ingress", isDropped},
		{"other near udp4/81", "CiliumNetworkPolicy/shop/guard spec.ingressDeny[1]", verdict{direction: isDropped.direction, reason: reasonRule}},
		{"other far udp6/81", "CiliumNetworkPolicy/shop/guard spec.ingressDeny[1]", verdict{direction: isDropped.direction, reason: reasonRule}},
	} {
		c := p.callOf(test.call)
		n, pod := c.to.node, c.to.Name
		before, drops, position := n.decided(p, test.rule), n.dropCount(p, pod, test.want.reason), p.drops.position()
		conn, err := c.from.Dial(p.ctx, "udp", netip.AddrPortFrom(c.to.addr(c.v6), c.port))
		require.NoError(t, err)
		for i := range datagrams {
			if test.want.allowed {
				_, err := askSoon(p.ctx, conn)
				require.NoError(t, err, "%s, datagram %d", c, i)
				continue
			}
			_, err := conn.Write([]byte("who"))
			require.NoError(t, err)
			p.eventually("a drop is told", func() error {
				if got := p.drops.since(position, c.dropped); len(got) != i+1 {
					return fmt.Errorf("%d drops, not %d", len(got), i+1)
				}
				return nil
			})
		}
		require.NoError(t, conn.Close())
		p.eventually(fmt.Sprintf("%s is counted", c), func() error {
			if n := n.decided(p, test.rule) - before; n != datagrams {
				return fmt.Errorf("rule %q has decided %d packets, not %d", test.rule, n, datagrams)
			}
			if n := n.dropCount(p, pod, test.want.reason) - drops; !test.want.allowed && n != datagrams {
				return fmt.Errorf("table drops has %d of %d", n, datagrams)
			}
			return nil
		})
		for _, e := range p.drops.since(position, c.dropped) {
			require.Equal(t, test.want.reason, e.Reason, e.text)
			require.Equal(t, []string{test.rule}, e.Rules, e.text)
			require.Contains(t, e.String(), test.rule) // as sluice monitor shows it
			require.Equal(t, pod, e.Pod, e.text)
		}
		if !test.want.allowed {
			require.NoError(t, AwaitRows(p.ctx, n.Agent, "drops", func(rows []tables.Drop) error {
				for _, r := range rows {
					if r.Pod == pod && r.Reason == test.want.reason && r.Policy == test.rule {
						return nil
					}
				}
				return fmt.Errorf("no drop of %s names %q: %+v", pod, test.rule, rows)
			}))
		}
	}
}

// decided is how many packets a rule has decided on a node, alone or with others.
func (n *Node) decided(p *policyTest, rule string) (packets uint64) {
	p.t.Helper()
	body, err := n.Agent.Get(p.ctx, "/rules")
	require.NoError(p.t, err)
	var report api.RulesReport
	require.NoError(p.t, json.Unmarshal(body, &report))
	require.True(p.t, report.Counted)
	for _, r := range report.Rules {
		if slices.Contains(r.Rules, rule) {
			packets += r.Packets
		}
	}
	return packets
}

// dropCount is how many packets of a pod the table drops has, for a reason.
func (n *Node) dropCount(p *policyTest, pod, reason string) (count uint64) {
	p.t.Helper()
	rows, err := Rows[tables.Drop](context.WithoutCancel(p.ctx), n.Agent, "drops")
	require.NoError(p.t, err)
	for _, r := range rows {
		if r.Pod == pod && r.Reason == reason {
			count += r.Count
		}
	}
	return count
}
