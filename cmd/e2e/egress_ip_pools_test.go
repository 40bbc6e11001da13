// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-net/sluice/cmd/e2e/cluster"
)

// poolManifests are a pool, a policy that names it, and the rights of the operator that the chart
// gives with flags.egress-ips.
const poolManifests = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: operator-pools}
rules:
- {apiGroups: [""], resources: [namespaces], verbs: [get, list, watch]}
- {apiGroups: [sluice.io], resources: [egressippools], verbs: [get, list, watch]}
- {apiGroups: [sluice.io], resources: [egressippools/status], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: operator-pools}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: operator-pools}
subjects: [{kind: ServiceAccount, name: sluice-operator, namespace: sluice-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: operator-voters, namespace: sluice-system}
rules:
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [sluice-egress-voters]
  verbs: [get, list, watch, patch]
- {apiGroups: [""], resources: [configmaps], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: operator-voters, namespace: sluice-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: operator-voters}
subjects: [{kind: ServiceAccount, name: sluice-operator, namespace: sluice-system}]
---
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: pooled, annotations: {sluice.net/egress-ip-pool: partners}}
spec:
  selectors: [{podSelector: {matchLabels: {app: web}}}]
  destinationCIDRs: [203.0.113.0/24]
  egressGateway: {nodeSelector: {matchLabels: {egress: "yes"}}}
`

const poolManifest = `
apiVersion: sluice.io/v1alpha1
kind: EgressIPPool
metadata: {name: partners}
spec: {cidrs: [198.51.100.0/28], portsPerBlock: 4096}
`

var poolResource = schema.GroupVersionResource{
	Group: "sluice.io", Version: "v1alpha1", Resource: "egressippools",
}

// poolStatus is the status of a pool as a user reads it.
type poolStatus struct {
	Addresses   struct{ Total, Used int }
	Blocks      []poolBlock
	Allocations []struct{ Address, Policy string }
	Conditions  []metav1.Condition
}

type poolBlock struct {
	Index                  int
	Node, Released, Closed string
}

// has reports which block a node has, and whether it is released.
func (s poolStatus) has(node string) (index int, released, found bool) {
	for _, b := range s.Blocks {
		if b.Node == node {
			return b.Index, b.Released != "", true
		}
	}
	return 0, false, false
}

func poolOf(t testing.TB, c *cluster.Cluster) (s poolStatus, version string) {
	t.Helper()
	object, err := c.Dynamic().Resource(poolResource).Get(t.Context(), "partners", metav1.GetOptions{})
	require.NoError(t, err)
	data, err := json.Marshal(object.Object["status"])
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &s))
	return s, object.GetResourceVersion()
}

// awaitPool waits until the status of the pool is as it should be.
func awaitPool(
	a *agent, c *cluster.Cluster, what string, is func(poolStatus) bool,
) (s poolStatus) {
	a.t.Helper()
	a.eventually(what, func() error {
		if s, _ = poolOf(a.t, c); !is(s) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	return s
}

// TestEgressIPPools: two operators give nodes blocks of ports and policies addresses, in the
// status of a pool, and go on from there when the one that leads is killed.
func TestEgressIPPools(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	populate(c)
	c.Apply(poolManifests)
	operators := map[string]*agent{}
	for _, name := range []string{"operator-1", "operator-2"} {
		operators[name] = newOperator(t, c.Kubeconfig("sluice-operator"), "--identity="+name,
			"--egress-ips")
		operators[name].start()
	}
	a := operators["operator-1"]
	first := leader(c, a, operators)
	c.Apply(poolManifest)
	began := time.Now()
	s := awaitPool(a, c, "each node has a block", func(s poolStatus) bool {
		return len(s.Blocks) == 3 && len(s.Allocations) == 1
	})
	t.Logf("the pool has its status after %s", time.Since(began))
	require.Equal(t, "pooled", s.Allocations[0].Policy)
	require.Equal(t, "198.51.100.1", s.Allocations[0].Address)
	require.Equal(t, 14, s.Addresses.Total)
	require.Equal(t, 1, s.Addresses.Used)
	require.Len(t, s.Conditions, 3)
	second, _, _ := s.has("node-2")

	// A node is gone, and another operator leads: the block rests, and the node gets it back.
	operators[first].kill()
	c.DeleteNode("node-2")
	c.CreateNode(cluster.Node{Name: "node-4", Ready: true, InternalIPs: addrs("192.168.7.4")})
	for name, other := range operators {
		if name != first {
			a = other
		}
	}
	s = awaitPool(a, c, "the block of node-2 rests", func(s poolStatus) bool {
		_, released, _ := s.has("node-2")
		return released && len(s.Blocks) == 4
	})
	fourth, _, found := s.has("node-4")
	require.True(t, found)
	require.NotEqual(t, second, fourth)
	c.CreateNode(cluster.Node{Name: "node-2", Ready: true, InternalIPs: addrs("192.168.7.2")})
	awaitPool(a, c, "node-2 has its block again", func(s poolStatus) bool {
		index, released, _ := s.has("node-2")
		return index == second && !released
	})

	wantsBlocks(t, a, c)

	// What is not for the present version of the object is refused, as a size that changes is.
	pools := c.Dynamic().Resource(poolResource)
	_, version := poolOf(t, c)
	object, err := pools.Get(t.Context(), "partners", metav1.GetOptions{})
	require.NoError(t, err)
	object.SetLabels(map[string]string{"changed": "yes"})
	object, err = pools.Update(t.Context(), object, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = pools.Patch(t.Context(), "partners", types.MergePatchType,
		[]byte(`{"metadata":{"resourceVersion":"`+version+`"},"status":{"blocks":null}}`),
		metav1.PatchOptions{}, "status")
	require.True(t, apierrors.IsConflict(err), "%v", err)
	object.Object["spec"].(map[string]any)["portsPerBlock"] = int64(64)
	_, err = pools.Update(t.Context(), object, metav1.UpdateOptions{})
	require.ErrorContains(t, err, "portsPerBlock cannot be changed")

	// A pool of addresses that move does not become a fixed one, which selects no nodes.
	for spec, refused := range map[string]string{
		`{"fixed":true}`:                   "fixed cannot be changed",
		`{"fixed":true,"nodeSelector":{}}`: "nodeSelector and maxPerNode are for addresses that move",
	} {
		_, err = pools.Patch(t.Context(), "partners", types.MergePatchType,
			[]byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
		require.ErrorContains(t, err, refused)
	}
	c.Apply(`
apiVersion: sluice.io/v1alpha1
kind: EgressIPPool
metadata: {name: fixed}
spec: {cidrs: [198.51.100.100/32], fixed: true}
`)
}

// wantsBlocks has node-1 report that it needs another block, and then that it does not, and that it
// has no connections with it any more.
func wantsBlocks(t *testing.T, a *agent, c *cluster.Cluster) {
	report := func(blocks int, drained string) {
		c.Apply(fmt.Sprintf(`
apiVersion: sluice.io/v1alpha1
kind: NodeReport
metadata: {name: node-1}
status: {egressPorts: [{pool: partners, blocks: %d, drained: [%s]}]}
`, blocks, drained))
	}
	of := func(s poolStatus) (blocks []string) {
		for _, b := range s.Blocks {
			if b.Node == "node-1" {
				blocks = append(blocks, b.Closed)
			}
		}
		return blocks
	}
	report(2, "")
	awaitPool(a, c, "node-1 has two blocks", func(s poolStatus) bool {
		return slices.Equal(of(s), []string{"", ""})
	})
	report(1, "")
	s := awaitPool(a, c, "one is closed", func(s poolStatus) bool {
		return len(of(s)) == 2 && of(s)[0] == "" && of(s)[1] != ""
	})
	index := slices.IndexFunc(s.Blocks, func(b poolBlock) bool { return b.Closed != "" })
	report(1, fmt.Sprintf("{index: %d, closed: %q}", s.Blocks[index].Index, s.Blocks[index].Closed))
	awaitPool(a, c, "it is free", func(s poolStatus) bool {
		return slices.Equal(of(s), []string{""}) && len(s.Blocks) == 4
	})
}
