// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
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

			cost := func(event string, want map[string]int, do func()) {
				t.Helper()
				before := c.memory.Sequence()
				do()
				require.NoError(t, c.settle(t.Context()))
				require.NoError(t, c.quietFor(t.Context(), surelySettled)) // it may not have begun
				require.Equal(t, want, c.writes(before), event)
			}
			type counts = map[string]int
			cost("a pod of another node", counts{"ipcache": 1}, func() {
				apply(countedPod(pods, "web"))
			})
			cost("a pod of this node", counts{"ipcache": 1, "pods": 1},
				func() { local(pods+1, "web") })
			cost("a pod that no policy selects", counts{"ipcache": 1, "pods": 1},
				func() { local(pods+3, "db") })
			cost("a pod of another node with new labels", counts{"ipcache": 1, "peers": 1},
				func() { apply(countedPod(pods+2, "web, color: blue")) })
			cost("a pod gets new labels", counts{"ipcache": 1, "peers": 1}, func() {
				apply(strings.ReplaceAll(countedPod(0, "web"), "app: web", "app: web, color: green"))
			})
			cost("the same objects again", counts{}, func() { apply(manifests[1:]...) })
			cost("a relist", counts{}, func() {
				require.NoError(t, c.api.Break("pods"))
				require.NoError(t, c.api.Resume("pods"))
			})
			// The new rule, the switch, and the old rule; and what they cover.
			cost("another destination of the policy", counts{
				"covered": 2, "egress": 2, "routes": 1,
			},
				func() { apply(countedPolicy("198.51.100.0/24")) })
			cost("the gateway is lost", counts{"gateways": 256, "nodes": 1},
				func() { apply(countedNode(2, "False")) })
			cost("a node that is no gateway is lost", counts{"nodes": 1}, func() {
				apply(strings.ReplaceAll(countedNode(1, "False"), "egress: a", "egress: none"))
			})
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
	for app, want := range map[string]map[string]int{
		"db": {"ipcache": 1}, "web": {"ipcache": 1, "pods": 1},
	} {
		before := c.memory.Sequence()
		apply(countedPod(10+len(want), app))
		require.NoError(t, c.settle(t.Context()))
		require.NoError(t, c.quietFor(t.Context(), surelySettled))
		require.Equal(t, want, c.writes(before), app)
	}
}

// writes are how many writes each map has had since a moment. That connections are judged
// again is not counted.
func (c *cluster) writes(since uint64) map[string]int {
	done, _ := c.memory.Writes(since)
	counts := map[string]int{}
	for _, w := range done {
		if w.Map != bpf.StateMap {
			counts[strings.TrimPrefix(w.Map, "sluice_")]++
		}
	}
	return counts
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
