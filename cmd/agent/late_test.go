// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// A derivation that is late must not lead others astray: these tests hold one
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
// it is noticed that nobody had them.
func TestLabelSetThatWasAboutToGo(t *testing.T) {
	c := newCluster(t, []string{"--node-name=node-1"})
	require.NoError(t, c.api.Sync())
	require.NoError(t, c.api.Apply([]byte(countedNode(2, "True"))))
	require.NoError(t, c.api.Apply(latePolicy("p", "{podSelector: {matchLabels: {app: a}}, nodeSelector: {matchLabels: {egress: none}}}", "192.0.2.0/24")))
	require.NoError(t, c.api.Apply([]byte(countedNode(1, "True"))))
	require.NoError(t, c.api.Apply(latePod("first", "app: a", 1)))
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	require.NoError(t, c.quiet(t.Context()))

	hold := c.oracle.DB.WriteTxn(c.table("class-members"))
	defer hold.Abort()
	require.NoError(t, c.api.Apply(latePod("first", "app: b", 1)))
	time.Sleep(late)
	require.NoError(t, c.api.Apply(latePod("second", "app: a", 2)))
	time.Sleep(late)
	hold.Abort()
	require.NoError(t, c.agrees(t.Context()))
}

// A policy gets another destination, one for one, and a new pod of its class
// comes. Whichever derivation between the policy and the gate of the pod is late,
// and though the kernel refuses the new rule: the pod does not get the old rules.
func TestPodThatJoinsAClassOfChangedRules(t *testing.T) {
	for _, table := range []string{"egress-classes", "egress-rules", "class-readiness"} {
		t.Run(table, func(t *testing.T) {
			c := newCluster(t, []string{"--node-name=node-1", "--retry-min=2ms", "--retry-max=20ms"})
			require.NoError(t, c.api.Sync())
			require.NoError(t, c.api.Apply(lateNode("node-2", 2, "egress: a")))
			require.NoError(t, c.api.Apply(latePolicy("p", "{podSelector: {matchLabels: {one: a}}}", "192.0.2.0/24")))
			require.NoError(t, c.api.Apply(latePod("first", "one: a", 1)))
			require.NoError(t, c.hive.Start(c.log, t.Context()))
			require.NoError(t, c.settle(t.Context()))

			joined := func() (found bool) {
				c.memory.Read(func(r bpf.Reader) {
					_, found = bpf.Get[bpf.SourceKey, bpf.SourceValue](r, "sluice_sources", bpf.SourceKey{Addr: bpf.AddressFrom(netip.MustParseAddr("10.0.0.2"))})
				})
				return found
			}
			c.memory.Fail("sluice_egress", bpf.OpUpdate, errFault, -1)
			hold := c.oracle.DB.WriteTxn(c.table(table))
			defer hold.Abort()
			require.NoError(t, c.api.Apply(latePolicy("p", "{podSelector: {matchLabels: {one: a}}}", "203.0.113.0/24")))
			time.Sleep(late)
			require.NoError(t, c.api.Apply(latePod("second", "one: a, two: a", 2)))
			time.Sleep(late)
			require.False(t, joined(), "while %s is late", table)
			hold.Abort()
			time.Sleep(late)
			require.False(t, joined(), "while the rule is refused")
			c.memory.Fail("sluice_egress", bpf.OpUpdate, errFault, 0)
			require.NoError(t, c.settle(t.Context()))
			require.True(t, joined())
		})
	}
}

// A pod is to leave a class and then is not, while class-readiness is late, which sees
// neither. A rule of the class that has waited for it is written all the same, soon.
func TestRuleThatWaitedForAPodThatStays(t *testing.T) {
	c := newCluster(t, []string{"--node-name=node-1", "--retry-min=2ms", "--retry-max=1h"})
	require.NoError(t, c.api.Sync())
	require.NoError(t, c.api.Apply(lateNode("node-2", 2, "egress: a")))
	require.NoError(t, c.api.Apply(latePolicy("p", "{podSelector: {matchLabels: {one: a}}}", "192.0.2.0/24")))
	require.NoError(t, c.api.Apply(latePod("first", "one: a", 1)))
	require.NoError(t, c.api.Apply(latePod("second", "one: a", 2)))
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	require.NoError(t, c.settle(t.Context()))
	rule := func() (status string) {
		for row := range c.desire.Rules.All(c.oracle.DB.ReadTxn()) {
			status = strings.TrimSpace(row.Status.Kind.String() + " " + row.Status.GetError())
		}
		return status
	}

	c.memory.Fail("sluice_egress", bpf.OpUpdate, errFault, -1)
	require.NoError(t, c.api.Apply(latePolicy("p", "{podSelector: {matchLabels: {one: a}}}", "203.0.113.0/24")))
	require.Eventually(t, func() bool { return rule() == "Error injected" }, settleTimeout, time.Millisecond)
	time.Sleep(late)
	hold := c.oracle.DB.WriteTxn(c.table("class-readiness"))
	defer hold.Abort()
	c.memory.Fail("sluice_sources", bpf.OpDelete, errFault, -1)
	require.NoError(t, c.api.Apply(latePod("first", "one: b", 1)))
	time.Sleep(late)
	c.memory.Fail("sluice_egress", bpf.OpUpdate, errFault, 0)
	require.Eventually(t, func() bool { return strings.Contains(rule(), "to be left") }, settleTimeout, time.Millisecond)
	require.NoError(t, c.api.Apply(latePod("first", "one: a", 1)))
	time.Sleep(late)
	c.memory.Fail("sluice_sources", bpf.OpDelete, errFault, 0)
	hold.Abort()
	require.NoError(t, c.settle(t.Context()))
}

// A class comes to mean more while a new pod joins it: the pod waits for the
// rules of the new meaning.
func TestPodThatJoinsAClassOfANewMeaning(t *testing.T) {
	c := newCluster(t, []string{"--node-name=node-1"})
	require.NoError(t, c.api.Sync())
	require.NoError(t, c.api.Apply([]byte(countedNode(2, "True"))))
	require.NoError(t, c.api.Apply(latePolicy("old", "{podSelector: {matchLabels: {one: a}}}", "192.0.2.0/24")))
	require.NoError(t, c.api.Apply(latePod("first", "one: a, two: a", 1)))
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	require.NoError(t, c.quiet(t.Context()))

	hold := c.oracle.DB.WriteTxn(c.table("egress-classes"))
	defer hold.Abort()
	require.NoError(t, c.api.Apply(latePolicy("new", "{podSelector: {matchLabels: {two: a}}}", "203.0.113.0/24")))
	time.Sleep(late)
	require.NoError(t, c.api.Apply(latePod("second", "one: a, two: a, three: a", 2)))
	time.Sleep(late)
	txn := c.oracle.DB.ReadTxn()
	row, _, found := c.desire.Sources.Get(txn, tables.EgressSourceByAddr(netip.AddrFrom4([4]byte{10, 0, 0, 2})))
	if found {
		require.Equal(t, "Pending", row.Status.Kind.String(), "the rules of the new policy are not there")
	}
	hold.Abort()
	require.NoError(t, c.agrees(t.Context()))
}

// A policy and a pod that it chooses come while sluice_covered is late, by which
// the pod would be held, and its class is late too. Nobody waits for the former: a
// pod without an entry would be held by it as well, or not. So connections may begin
// that pass the gateway by; none goes on when the kernel knows the pod's class.
func TestPodThatNothingHolds(t *testing.T) {
	c := newCluster(t, []string{"--node-name=node-1", "--retry-min=2ms", "--retry-max=20ms"})
	require.NoError(t, c.api.Sync())
	require.NoError(t, c.api.Apply(lateNode("node-1", 1, "egress: none")))
	require.NoError(t, c.api.Apply(lateNode("node-2", 2, "egress: a")))
	require.NoError(t, c.hive.Start(c.log, t.Context()))
	require.NoError(t, c.settle(t.Context()))
	pod, remote := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.1")
	c.memory.Read(func(r bpf.Reader) { c.checker.watch([]netip.Addr{pod}, []netip.Addr{remote}, r) })
	history := func() history {
		c.checker.mu.Lock()
		defer c.checker.mu.Unlock()
		return *c.checker.probes[probe{pod, remote}]
	}

	c.memory.Fail("sluice_sources", bpf.OpUpdate, errFault, -1)
	hold := c.oracle.DB.WriteTxn(c.table("covered-prefixes"))
	defer hold.Abort()
	require.NoError(t, c.api.Apply(latePolicy("p", "{podSelector: {matchLabels: {one: a}}}", "203.0.113.0/24")))
	time.Sleep(late)
	require.NoError(t, c.api.Apply(latePod("first", "one: a", 1)))
	require.Eventually(t, func() bool { return history().open != 0 }, settleTimeout, time.Millisecond)
	open := history().open

	c.memory.Fail("sluice_sources", bpf.OpUpdate, errFault, 0)
	require.NoError(t, c.quiet(t.Context()))
	require.Greater(t, history().epoch, open)
	require.NoError(t, c.checker.outlived())
	hold.Abort()
	require.NoError(t, c.settle(t.Context()))
}
