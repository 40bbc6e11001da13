// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy/policytest"
)

const (
	shopServer   = "10.0.0.10"
	tenantServer = "10.0.0.20"
	otherServer  = "10.0.0.30"
)

// A tenant whose policies split the pods of another namespace into more classes than these may
// have is isolated. Those pods stay peers of all others all the time, also new ones, and policies of
// others may still tell them apart.
func TestTenantSplitsPods(t *testing.T) {
	const share, pods = 4, 10
	g := newPolicyCluster(t, policytest.NewGenerator(1), fmt.Sprintf("--map-size-policy=%d", 256*share))
	g.apply(localNodeManifest,
		"{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {kubernetes.io/metadata.name: shop}}}",
		"{apiVersion: v1, kind: Namespace, metadata: {name: tenant}}", "{apiVersion: v1, kind: Namespace, metadata: {name: other}}",
		podManifest("shop/server", policytest.LocalNode, shopServer, "app: server"),
		podManifest("tenant/server", policytest.LocalNode, tenantServer, "app: server"),
		podManifest("other/server", policytest.LocalNode, otherServer, "app: server"),
		allowPolicy("shop/server", "app: server", "podSelector: {}"),
	)
	peer := func(i int) string { return fmt.Sprintf("10.0.1.%d", i) }
	job := func(i int) string { return fmt.Sprintf("j%d", i) }
	var peers, items []string
	for i := range pods {
		g.apply(podManifest(fmt.Sprintf("shop/pod-%d", i), "node-2", peer(i), "app: "+job(i)))
		peers = append(peers, peer(i))
		items = append(items, jobOfShop(job(i)))
	}
	g.begin()
	g.watch(ingressOf(shopServer, peers...))
	settle := func() {
		t.Helper()
		require.NoError(t, g.quietFor(t.Context(), surelySettled))
		require.NoError(t, g.policies.rest(g.world(g.base.DB.ReadTxn())), "peers of their own namespace")
		g.watch(ingressOf(shopServer, peers...))
	}
	isAllowed := func(server string, peer string) (is bool) {
		g.memory.Read(func(r bpf.Reader) {
			verdict, _ := policyInKernel(r, ingressOf(server, peer)[0], true)
			is = verdict == allowed
		})
		return is
	}
	refusals := func() int { return g.desire.Split.NumObjects(g.base.DB.ReadTxn()) }

	g.apply(allowPolicy("tenant/server", "app: server", items...))
	settle()
	require.NotZero(t, refusals())
	for i := range pods {
		require.False(t, isAllowed(tenantServer, peer(i)), "the tenant is isolated")
	}
	id := tables.PolicyID{Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "tenant", Name: "server"}}
	status, _, found := g.desire.PolicyStatuses.Get(g.base.DB.ReadTxn(), tables.NetworkPolicyStatusByPolicy(id))
	require.True(t, found)
	require.Equal(t, tables.PolicyTooLarge, status.State)
	require.Contains(t, status.TooLarge, "split the pods of namespace shop")

	// The policy of another namespace has room.
	g.apply(allowPolicy("other/server", "app: server", jobOfShop("j1")))
	settle()
	require.True(t, isAllowed(otherServer, peer(1)))
	require.False(t, isAllowed(otherServer, peer(2)))

	// A tenant that uses all room is isolated as soon as the pods themselves need it.
	g.apply(allowPolicy("tenant/server", "app: server", jobOfShop("j0"), jobOfShop("j3")))
	settle()
	require.True(t, isAllowed(tenantServer, peer(3)))
	g.apply(allowPolicy("shop/server", "app: server", "podSelector: {}", "podSelector: {matchLabels: {app: j5}}"))
	settle()
	require.False(t, isAllowed(tenantServer, peer(3)))
	require.True(t, isAllowed(otherServer, peer(1)), "it is not the one that splits most")

	// With fewer pods there is room.
	for i := 3; i < pods; i++ {
		require.NoError(t, g.api.Delete([]byte(podManifest(fmt.Sprintf("shop/pod-%d", i), "node-2", peer(i), "app: "+job(i)))))
	}
	peers = peers[:3]
	g.watch(nil)
	settle()
	require.Zero(t, refusals())
	require.True(t, isAllowed(tenantServer, peer(0)))
	require.False(t, isAllowed(tenantServer, peer(1)))
}

func jobOfShop(app string) string {
	return "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}, podSelector: {matchLabels: {app: " + app + "}}"
}
