// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What events cost in writes to the kernel, exactly, whatever the size.
func TestWritesPerEvent(t *testing.T) {
	for _, pods := range []int{10, 300} {
		t.Run(fmt.Sprint(pods, " pods"), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, []string{"--node-name=node-1"})
			require.NoError(t, c.api.Sync())
			apply := func(manifests ...string) {
				require.NoError(t, c.api.Apply([]byte(strings.Join(manifests, "---\n"))))
			}
			apply(countedNode(1, "True"), countedNode(2, "True"), countedNode(3, "True"), countedPolicy("203.0.113.0/24"))
			manifests := make([]string, pods)
			for i := range manifests {
				manifests[i] = countedPod(i, "web")
			}
			apply(manifests...)
			// The labels of all pods are known, on this node too.
			local := func(i int, app string) { apply(strings.ReplaceAll(countedPod(i, app), "node-3", "node-1")) }
			local(pods+4, "web")
			local(pods+5, "db")
			require.NoError(t, c.hive.Start(c.log, t.Context()))
			require.NoError(t, c.quiet(t.Context()))

			cost := func(event string, want int, do func()) {
				t.Helper()
				before := c.memory.Sequence()
				do()
				require.NoError(t, c.settle(t.Context()))
				if c.memory.Sequence()-before < uint64(want) { // it may not have begun
					require.NoError(t, c.quietFor(t.Context(), surelySettled))
				}
				require.EqualValues(t, want, c.memory.Sequence()-before, event)
			}
			// Most pods are on another node. On this one they have a device, and the
			// class that the policy puts them in.
			cost("a pod of another node", 1, func() { apply(countedPod(pods, "web")) })
			cost("a pod of this node", 3, func() { local(pods+1, "web") })
			cost("a pod that no policy chooses", 2, func() { local(pods+3, "db") })
			cost("a pod of another node with labels that no policy looks at", 1, func() { apply(countedPod(pods+2, "web, color: blue")) })
			cost("a label that no policy looks at", 0, func() {
				apply(strings.ReplaceAll(countedPod(0, "web"), "app: web", "app: web, color: green"))
			})
			cost("the same objects again", 0, func() { apply(manifests[1:]...) })
			cost("a relist", 0, func() {
				require.NoError(t, c.api.Break("pods"))
				require.NoError(t, c.api.Resume("pods"))
			})
			// The rule and what it covers, each written and deleted, and the epochs
			// of the two pods here.
			cost("another destination of the policy", 4+2, func() { apply(countedPolicy("198.51.100.0/24")) })
			cost("the gateway is lost", 256+1, func() { apply(countedNode(2, "False")) })
			cost("a node that is no gateway is lost", 1, func() { apply(strings.ReplaceAll(countedNode(1, "False"), "egress: a", "egress: none")) })
		})
	}
}

// A node that may be a gateway knows the class of other nodes' pods too.
func TestWritesPerPodOfAGateway(t *testing.T) {
	c := newCluster(t, []string{"--node-name=node-2"})
	require.NoError(t, c.api.Sync())
	apply := func(manifests ...string) {
		require.NoError(t, c.api.Apply([]byte(strings.Join(manifests, "---\n"))))
	}
	apply(countedNode(1, "True"), countedNode(2, "True"), countedNode(3, "True"), countedPolicy("203.0.113.0/24"),
		countedPod(1, "web"), countedPod(2, "db"))
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	require.NoError(t, c.quiet(t.Context()))
	for app, want := range map[string]int{"db": 1, "web": 2} {
		before := c.memory.Sequence()
		apply(countedPod(10+want, app))
		require.NoError(t, c.settle(t.Context()))
		require.NoError(t, c.quietFor(t.Context(), surelySettled))
		require.EqualValues(t, want, c.memory.Sequence()-before, app)
	}
}

func countedPod(i int, app string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: pod-%d, namespace: prod, labels: {app: %s}}
spec: {nodeName: node-3, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.1.%d.%d}]}
`, i, app, i/200, 1+i%200)
}

func countedNode(i int, ready string) string {
	egress := "a"
	if i == 1 {
		egress = "none"
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: node-%d, labels: {egress: %s}}
status:
  addresses: [{type: InternalIP, address: 192.168.0.%d}]
  conditions: [{type: Ready, status: "%s"}]
`, i, egress, i, ready)
}

func countedPolicy(destination string) string {
	return fmt.Sprintf(`
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: web}
spec:
  selectors: [{podSelector: {matchLabels: {app: web}}}]
  destinationCIDRs: [%s]
  egressGateway: {nodeSelector: {matchLabels: {egress: a}}}
`, destination)
}
