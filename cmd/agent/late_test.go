// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// A derivation that is late must not give others wrong results: these tests hold one
// back by the lock of its table, where a busy machine would do so now and then.

func (c *cluster) table(name string) statedb.TableMeta {
	db := c.oracle.DB
	for _, table := range db.GetTables(db.ReadTxn()) {
		if table.Name() == name {
			return table
		}
	}
	c.t.Fatalf("no table %s", name)
	return nil
}

// for how long a derivation is late: all others have time enough to go wrong.
const late = 100 * time.Millisecond

func latePod(name, labels string, ip int) []byte {
	return fmt.Appendf(nil, `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: prod, labels: {%s}}
spec: {nodeName: node-1, containers: [{name: c}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.%d}]}
`, name, labels, ip)
}

func lateNode(name string, n int, labels string) []byte {
	return fmt.Appendf(nil, `
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {%s}}
status:
  addresses: [{type: InternalIP, address: 192.168.0.%d}]
  conditions: [{type: Ready, status: "True"}]
`, name, labels, n)
}

func latePolicy(name, selector, destination string) []byte {
	return fmt.Appendf(nil, `
apiVersion: cilium.io/v2
kind: CiliumEgressGatewayPolicy
metadata: {name: %s}
spec:
  selectors: [%s]
  destinationCIDRs: [%s]
  egressGateway: {nodeSelector: {matchLabels: {egress: a}}}
`, name, selector, destination)
}

// The last pod with some labels gets others, and another pod gets those, before
// it is noticed that no pod had them.
func TestLabelSetThatWasAboutToGo(t *testing.T) {
	c := newCluster(t, []string{"--node-name=node-1"})
	require.NoError(t, c.api.Sync())
	require.NoError(t, c.api.Apply([]byte(countedNode(2, "True"))))
	require.NoError(t, c.api.Apply(latePolicy("p", "{podSelector: {matchLabels: {app: a}}, nodeSelector: {matchLabels: {egress: none}}}", "192.0.2.0/24")))
	require.NoError(t, c.api.Apply([]byte(countedNode(1, "True"))))
	require.NoError(t, c.api.Apply(latePod("first", "app: a", 1)))
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	require.NoError(t, c.quiet(t.Context()))

	hold := c.oracle.DB.WriteTxn(c.table("subjects"), c.table("members"))
	defer hold.Abort()
	require.NoError(t, c.api.Apply(latePod("first", "app: b", 1)))
	time.Sleep(late)
	require.NoError(t, c.api.Apply(latePod("second", "app: a", 2)))
	time.Sleep(late)
	hold.Abort()
	require.NoError(t, c.agrees(t.Context()))
}

// A policy gets another destination, one for one, and a new pod that it selects comes.
// Whichever derivation between the policy and the gate of the pod is late, and though the
// kernel refuses the new rule: the pod does not get the old rules.
func TestPodAndChangedRules(t *testing.T) {
	for _, table := range []string{"subjects", "egress-gateways", "map-routes"} {
		t.Run(table, func(t *testing.T) {
			c := newCluster(t, []string{"--node-name=node-1", "--retry-min=2ms", "--retry-max=20ms"})
			require.NoError(t, c.api.Sync())
			require.NoError(t, c.api.Apply(lateNode("node-2", 2, "egress: a")))
			selector := "{podSelector: {matchLabels: {one: a}}}"
			require.NoError(t, c.api.Apply(latePolicy("p", selector, "192.0.2.0/24")))
			require.NoError(t, c.api.Apply(latePod("first", "one: a", 1)))
			require.NoError(t, c.hive.Start(c.log, t.Context()))
			require.NoError(t, c.settle(t.Context()))

			routed := func() (found bool) {
				c.memory.Read(func(r bpf.Reader) {
					key := bpf.PodKey{Addr: bpf.AddressFrom(netip.MustParseAddr("10.0.0.2"))}
					pod, _ := bpf.Get[bpf.PodKey, bpf.PodValue](r, "sluice_pods", key)
					_, found = bpf.Get[bpf.SubjectKey, bpf.RouteValue](
						r, "sluice_routes", bpf.SubjectKey{Subject: pod.Subject})
				})
				return found
			}
			c.memory.Fail("sluice_egress", bpf.OpUpdate, errFault, -1)
			hold := c.oracle.DB.WriteTxn(c.table(table))
			defer hold.Abort()
			require.NoError(t, c.api.Apply(latePolicy("p", selector, "203.0.113.0/24")))
			time.Sleep(late)
			require.NoError(t, c.api.Apply(latePod("second", "one: a, two: a", 2)))
			time.Sleep(late)
			require.False(t, routed(), "while %s is late", table)
			hold.Abort()
			time.Sleep(late)
			require.False(t, routed(), "while the rule is refused")
			c.memory.Fail("sluice_egress", bpf.OpUpdate, errFault, 0)
			require.NoError(t, c.settle(t.Context()))
			require.True(t, routed())
		})
	}
}
