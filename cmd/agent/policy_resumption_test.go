// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// Policies change while no agent runs, so that pods that were alike are to be told
// apart on both sides, and a prefix is no more named, which lies in one that is. What
// was allowed and is stays so after each write, and what was forbidden and is does too,
// also when the agent is killed on the way, any number of times.
func TestPolicyChangesWithoutAgent(t *testing.T) {
	before := []string{
		allowPolicy("web", "app: web", "podSelector: {matchLabels: {app: api}}", "ipBlock: {cidr: 198.51.100.0/24}"),
	}
	after := []string{
		allowPolicy("web", "name: one", "podSelector: {matchLabels: {tier: front}}", "ipBlock: {cidr: 198.51.0.0/16, except: [198.51.200.0/24]}"),
		allowPolicy("other", "name: two", "podSelector: {matchLabels: {tier: back}}", "podSelector: {matchLabels: {app: db}}"),
	}
	for _, writes := range []int{-1, 0, 1, 2, 3, 5, 8, 13, 21} {
		t.Run(fmt.Sprint("killed after ", writes), func(t *testing.T) {
			t.Parallel()
			g := newPolicyCluster(t, policytest.NewGenerator(1))
			g.apply("{apiVersion: v1, kind: Namespace, metadata: {name: ns}}", localNodeManifest,
				podManifest("one", policytest.LocalNode, "10.0.0.1", "app: web"), podManifest("two", policytest.LocalNode, "10.0.0.2", "app: web"),
				podManifest("front", "node-1", "10.0.1.1", "app: api, tier: front"), podManifest("back", "node-1", "10.0.1.2", "app: api, tier: back"),
				podManifest("back-too", "node-1", "10.0.1.3", "app: api, tier: back"),
				podManifest("db", "node-1", "10.0.1.4", "app: db"), podManifest("none", "node-1", "10.0.1.5", "app: none"))
			g.apply(before...)
			g.begin()

			peers := []string{"10.0.1.1", "10.0.1.2", "10.0.1.3", "10.0.1.4", "10.0.1.5", "198.51.100.1", "198.51.101.1", "198.51.200.1", "203.0.113.1"}
			packets := append(ingressOf("10.0.0.1", peers...), ingressOf("10.0.0.2", peers...)...)
			g.watch(packets)
			g.restart(t.Context(), func() { g.apply(after...) })
			for range 4 {
				if writes >= 0 {
					died := g.killAfter(writes)
					g.pause(died.Load)
					g.restart(t.Context(), func() {})
				}
			}
			require.NoError(t, g.agreesOnPolicies(t.Context()))
			require.NoError(t, g.policies.rest(g.world(g.base.DB.ReadTxn())))
			var changed []string
			g.memory.Read(func(r bpf.Reader) {
				for _, p := range packets {
					verdict, _ := policyInKernel(r, p, true)
					changed = append(changed, fmt.Sprint(p.Subject, " ", p.Peer, " ", verdict))
				}
			})
			require.Equal(t, []string{
				"10.0.0.1 10.0.1.1 allowed", "10.0.0.1 198.51.100.1 allowed", "10.0.0.1 198.51.101.1 allowed",
				"10.0.0.2 10.0.1.2 allowed", "10.0.0.2 10.0.1.3 allowed", "10.0.0.2 10.0.1.4 allowed",
			}, allowedOf(changed))
		})
	}
}

func allowedOf(lines []string) (allowed []string) {
	for _, l := range lines {
		if strings.HasSuffix(l, " allowed") {
			allowed = append(allowed, l)
		}
	}
	return allowed
}

func podManifest(name, node, addr, labels string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: ns, labels: {name: %[1]s, %s}}, spec: {nodeName: %s, containers: [{name: c}]}, status: {phase: Running, podIPs: [{ip: %s}]}}",
		name, labels, node, addr)
}

func allowPolicy(name, subject string, peers ...string) string {
	return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s, namespace: ns}, spec: {podSelector: {matchLabels: {%s}}, ingress: [{from: [{%s}]}]}}",
		name, subject, strings.Join(peers, "}, {"))
}
