// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables/derive"
)

// What events cost where there are network policies, exactly and whatever the size: writes to
// the kernel, by map.
func TestPolicyCosts(t *testing.T) {
	for _, pods := range []int{10, 300} {
		t.Run(fmt.Sprint(pods, " pods"), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, []string{"--node-name=node-1"})
			require.NoError(t, c.api.Sync())
			apply := func(manifests ...string) {
				require.NoError(t, c.api.Apply([]byte(strings.Join(manifests, "---\n"))))
			}
			remove := func(manifest string) { require.NoError(t, c.api.Delete([]byte(manifest))) }
			apply(countedNode(1, "True"), countedNode(3, "True"))
			for _, app := range []string{"web", "db", "proxy"} {
				apply(policyPolicy(app, policyItem("proxy", 80), policyItem("db", 90)))
			}
			manifests := make([]string, pods)
			for i := range manifests {
				manifests[i] = policyPod(i, "node-3", []string{"web", "db", "proxy", "other"}[i%4])
			}
			apply(manifests...)
			for i, app := range []string{"web", "db", "proxy", "other"} {
				apply(policyPod(1000+i, "node-1", app))
			}
			require.NoError(t, c.hive.Start(c.log, t.Context()))
			require.NoError(t, c.agreesOnPolicies(t.Context()))
			require.Less(
				t, c.counts("pods").Keys, 40,
				"pods elsewhere cost nothing that no egress policy selects",
			)

			cost := func(event string, do func(), writes map[string]int) {
				t.Helper()
				before := c.memory.Sequence()
				do()
				require.NoError(t, c.agreesOnPolicies(t.Context()), event)
				require.NoError(t, c.quietFor(t.Context(), surelySettled), event)
				require.Equal(t, writes, c.writes(before), event)
			}
			type counts = map[string]int
			none := counts{}
			cost("a pod of another node, with known labels",
				func() { apply(policyPod(pods, "node-3", "web")) }, counts{"ipcache": 1})
			cost("a pod of this node, with known labels",
				func() { apply(policyPod(pods+1, "node-1", "web")) },
				counts{"ipcache": 1, "pods": 1})
			cost("a pod with new labels",
				func() { apply(policyPod(pods+2, "node-3", "web, color: green")) },
				counts{"ipcache": 1, "peers": 1})
			cost("a pod of this node with new labels",
				func() { apply(policyPod(pods+3, "node-1", "new")) },
				counts{"ipcache": 1, "peers": 1, "pods": 1, "subjects": 1})
			cost("a pod gets new labels",
				func() { apply(policyPod(0, "node-3", "web, color: blue")) },
				counts{"ipcache": 1, "peers": 1})
			cost("a pod gets known labels, and its own go",
				func() { apply(policyPod(0, "node-3", "db")) }, counts{"ipcache": 1, "peers": 1})
			cost("the same pods again", func() { apply(manifests[1:]...) }, none)
			cost("the same policy again", func() {
				apply(policyPolicy("web", policyItem("proxy", 80), policyItem("db", 90)))
			}, none)
			cost("a policy with another annotation", func() {
				apply(strings.Replace(
					policyPolicy("web", policyItem("proxy", 80), policyItem("db", 90)),
					"name: web", "name: web, annotations: {a: b}", 1))
			}, none)
			cost("the pods are listed again", func() {
				require.NoError(t, c.api.Break("pods"))
				require.NoError(t, c.api.Resume("pods"))
			}, none)
			// A new ruleset, of four entries, to which the label set switches; and the former
			// one goes. One verdict set is another one: of three verdicts, or of two.
			changed := counts{"policy": 8, "subjects": 1, "verdicts": 5}
			cost("a port more for one peer", func() {
				apply(policyPolicy("web", policyItem("proxy", 80), policyItem("db", 90, 91)))
			}, changed)
			cost("a port less for one peer", func() {
				apply(policyPolicy("web", policyItem("proxy", 80), policyItem("db", 90)))
			}, changed)
			cost("a pod is gone",
				func() { remove(policyPod(pods, "node-3", "web")) }, counts{"ipcache": 1})
			cost("a policy about pods that are not here",
				func() { apply(policyPolicy("absent", policyItem("proxy", 80))) }, none)
			cost("that policy is gone",
				func() { remove(policyPolicy("absent", policyItem("proxy", 80))) }, none)
		})
	}
}

// counts is the work that a rule has done so far.
func (c *cluster) counts(table string) derive.Counts {
	for _, s := range c.work.All() {
		if s.Table() == table {
			return s.Counts()
		}
	}
	c.t.Errorf("no rule derives %s", table)
	return derive.Counts{}
}

func policyPod(i int, node, app string) string {
	return strings.ReplaceAll(countedPod(i, app), "node-3", node)
}

func policyPolicy(app string, items ...string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s, namespace: prod}
spec: {podSelector: {matchLabels: {app: %s}}, policyTypes: [Ingress], ingress: [%s]}
`, app, app, strings.Join(items, ", "))
}

func policyItem(app string, ports ...int) string {
	list := make([]string, len(ports))
	for i, p := range ports {
		list[i] = fmt.Sprintf("{port: %d}", p)
	}
	return fmt.Sprintf("{from: [{podSelector: {matchLabels: {app: %s}}}], ports: [%s]}", app, strings.Join(list, ", "))
}
