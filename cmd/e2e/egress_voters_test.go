// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-net/sluice/cmd/e2e/cluster"
	"github.com/sluice-net/sluice/tables"
)

// awaitVoters waits until the nodes that vote, in each set, are those of a generation.
func awaitVoters(a *agent, c *cluster.Cluster, generation int64, sets ...string) {
	a.t.Helper()
	configMaps := c.Dynamic().Resource(corev1.SchemeGroupVersion.WithResource("configmaps"))
	a.eventually(fmt.Sprintf("generation %d of voters", generation), func() error {
		object, err := configMaps.Namespace("sluice-system").Get(a.t.Context(),
			tables.EgressVotersName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		data, _ := object.Object["data"].(map[string]any)
		text, _ := data[tables.EgressVotersKey].(string)
		var voters tables.EgressVotersInObject
		if err := json.Unmarshal([]byte(text), &voters); err != nil {
			return err
		}
		var has []string
		for _, set := range voters.Sets {
			var names []string
			for _, v := range set.Voters {
				names = append(names, v.Node)
			}
			has = append(has, strings.Join(names, " "))
		}
		if voters.Generation != generation || !slices.Equal(has, sets) {
			return fmt.Errorf("the object says %s", text)
		}
		return nil
	})
}

// acknowledge has nodes say that they have taken a generation over.
func acknowledge(c *cluster.Cluster, generation int, nodes ...string) {
	for _, n := range nodes {
		c.Apply(fmt.Sprintf(`
apiVersion: sluice.io/v1alpha1
kind: NodeReport
metadata: {name: %s}
status: {agentVersion: v1, egressVoters: %d}
`, n, generation))
	}
}

// TestEgressVoters: the operator, with the rights that it has to one ConfigMap, chooses the nodes
// that vote, and has another node take the place of one that is gone; and chooses them anew when
// the object is deleted.
func TestEgressVoters(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	populate(c)
	c.Apply(poolManifests)
	c.Apply(poolManifest)
	a := newOperator(t, c.Kubeconfig("sluice-operator"), "--identity=operator-1", "--egress-ips")
	a.start()
	first, second, third := localNode+" node-2 node-3", localNode+" node-2", localNode+" node-2 node-4"
	awaitVoters(a, c, 1, first)

	c.DeleteNode("node-3")
	c.CreateNode(cluster.Node{Name: "node-4", Ready: true, InternalIPs: addrs("192.168.7.4")})
	for i, sets := range [][]string{{first, second}, {second}, {second, third}, {third}} {
		acknowledge(c, i+1, localNode, "node-2", "node-4") // all are gateways
		awaitVoters(a, c, int64(i+2), sets...)
	}

	require.NoError(t, c.Dynamic().
		Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace("sluice-system").
		Delete(t.Context(), tables.EgressVotersName, metav1.DeleteOptions{}))
	awaitVoters(a, c, 6, third)
}
