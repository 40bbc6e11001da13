// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/tables/explain"
)

// explanation asks an agent what network policies say of a call.
func (n *Node) explanation(ctx context.Context, c call) (*explain.Policy, error) {
	traffic := fmt.Sprintf("%d/%s", c.port, c.network)
	if c.network == "icmp" {
		traffic = "8/icmp"
		if c.v6 {
			traffic = "128/icmpv6"
		}
	}
	body, err := n.Agent.Get(ctx, api.ExplainPolicyPath(c.from.addr(c.v6).String(), c.to.addr(c.v6).String(), traffic))
	if err != nil {
		return nil, err
	}
	answer := &explain.Policy{}
	return answer, json.Unmarshal(body, answer)
}

// explained asserts that the agents explain a call as it went, by their tables and by
// the maps of the kernel.
func (p *policyTest) explained(c call, want verdict) {
	p.t.Helper()
	if c.to.behind != nil {
		return // what becomes of it is not the agents' to know
	}
	for _, at := range []place{c.from, c.to} {
		if at.node == nil {
			continue
		}
		got, err := at.node.explanation(p.ctx, c)
		require.NoError(p.t, err, "%s", c)
		text, _ := json.Marshal(got)
		require.Empty(p.t, got.Differences, "%s on %s: %s", c, at.node.Name, text)
		require.NotNil(p.t, got.Kernel, "%s on %s: %s", c, at.node.Name, text)
		for source, j := range map[string]explain.Judged{"tables": got.Judged, "kernel": got.Kernel.Judged} {
			if want.allowed {
				verdict := explain.Allowed
				if j.Reason == explain.ReasonNotHere { // as a node's own traffic is judged nowhere
					verdict = explain.NotJudged
				}
				require.Equal(p.t, verdict, j.Verdict, "%s by the %s of %s: %s", c, source, at.node.Name, text)
			} else if c.judge(want).node == at.node {
				denies(p.t, j, want, fmt.Sprintf("%s by the %s of %s: %s", c, source, at.node.Name, text))
			}
		}
	}
}

// denies asserts that a judgement denies in the direction, for the reason.
func denies(t *testing.T, j explain.Judged, want verdict, what string) {
	t.Helper()
	require.Equal(t, explain.Denied, j.Verdict, what)
	i := slices.IndexFunc(j.Directions, func(d explain.Judgement) bool { return d.Direction == want.direction.String() })
	require.GreaterOrEqual(t, i, 0, what)
	d := j.Directions[i]
	require.Equal(t, explain.Denied, d.Verdict, what)
	reason := explain.ReasonDefaultDeny
	if want.reason == reasonRule {
		reason = explain.ReasonDenyRule
	}
	require.Equal(t, reason, d.Reason, what)
	if want.unnamed {
		require.Empty(t, d.Rules, what)
		return
	}
	named := slices.ContainsFunc(d.Rules, func(r explain.Rule) bool { return strings.Contains(r.Policy, want.policy) })
	require.True(t, named, "the policy %q is not named: %s", want.policy, what)
}
