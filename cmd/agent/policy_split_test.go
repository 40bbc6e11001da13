// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

// A tenant whose policies tell more pods of another namespace apart than that may have classes cuts
// them off from its own pods only: policies of their namespace, cluster-wide ones, and those of
// other namespaces that select the whole namespace go on all the time, also of new pods.
func TestTenantSplitsPods(t *testing.T) {
	const (
		share, pods  = 4, 10
		shopServer   = "10.0.0.10"
		tenantServer = "10.0.0.20"
		dnsServer    = "10.0.0.30"
	)
	g := newPolicyCluster(
		t, policytest.NewGenerator(1), fmt.Sprintf("--map-size-policy=%d", 256*share))
	pod := func(namespace, name, node, addr, app string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s,
			labels: {app: %s}}, spec: {nodeName: %s, containers: [{name: c}]},
			status: {phase: Running, podIPs: [{ip: %s}]}}`, name, namespace, app, node, addr)
	}
	ingress := func(namespace, from string) string {
		return fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy,
			metadata: {name: server, namespace: %s},
			spec: {podSelector: {matchLabels: {app: server}}, ingress: [{from: [%s]}]}}`, namespace, from)
	}
	g.apply(localNodeManifest,
		"{apiVersion: v1, kind: Namespace, metadata: {name: shop}}",
		"{apiVersion: v1, kind: Namespace, metadata: {name: tenant}}",
		"{apiVersion: v1, kind: Namespace, metadata: {name: dns}}",
		pod("shop", "server", policytest.LocalNode, shopServer, "server"),
		pod("tenant", "server", policytest.LocalNode, tenantServer, "server"),
		pod("dns", "server", policytest.LocalNode, dnsServer, "server"),
		ingress("dns", "{namespaceSelector: {}}"),
		ingress("shop", "{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [j1]}]}}"),
	)
	peer := func(i int) string { return fmt.Sprintf("10.0.1.%d", i) }
	job := func(i int) string {
		return pod("shop", fmt.Sprint("job-", i), "node-2", peer(i), fmt.Sprint("j", i))
	}
	var peers []string
	for i := range pods {
		g.apply(job(i))
		peers = append(peers, peer(i))
	}
	g.begin()
	isAllowed := func(server string, i int) (is bool) {
		g.memory.Read(func(r bpf.Reader) {
			verdict, _ := policyInKernel(r, ingressOf(server, peer(i))[0], true)
			is = verdict == allowed
		})
		return is
	}
	settle := func() {
		t.Helper()
		require.NoError(t, g.quietFor(t.Context(), surelySettled))
		require.NoError(t, g.policies.rest(g.world(g.base.DB.ReadTxn())), "peers of their own namespace")
		for i := range peers {
			require.Equal(t, i != 1, isAllowed(shopServer, i), "job %d in its namespace", i)
			require.True(t, isAllowed(dnsServer, i), "job %d of any namespace", i)
		}
		g.watch(append(ingressOf(shopServer, peers...), ingressOf(dnsServer, peers...)...))
	}
	settle()

	// The tenant tells all of them apart: those beyond the share are denied by its own pods.
	var items string
	for i := range pods {
		items += fmt.Sprintf(`{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}},
			podSelector: {matchLabels: {app: j%d}}}, `, i)
	}
	g.apply(ingress("tenant", items))
	settle()
	denied := 0
	for i := range pods {
		if !isAllowed(tenantServer, i) {
			denied++
		}
	}
	require.NotZero(t, denied)
	require.Less(t, denied, pods)

	// A new pod of the namespace is a peer as the others are.
	peers = append(peers, peer(pods))
	g.watch(nil)
	g.apply(job(pods))
	settle()

	// With fewer pods there is room.
	for i := 3; i <= pods; i++ {
		require.NoError(t, g.api.Delete([]byte(job(i))))
	}
	peers = peers[:3]
	g.watch(nil)
	settle()
	for i := range peers {
		require.True(t, isAllowed(tenantServer, i))
	}
}
