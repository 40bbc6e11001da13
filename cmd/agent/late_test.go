// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

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

	hold := c.oracle.DB.WriteTxn(c.table("label-sets"))
	defer hold.Abort()
	require.NoError(t, c.api.Apply(latePod("first", "app: b", 1)))
	time.Sleep(late)
	require.NoError(t, c.api.Apply(latePod("second", "app: a", 2)))
	time.Sleep(late)
	hold.Abort()
	require.NoError(t, c.quiet(t.Context()))
	require.NoError(t, c.compare())
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
	require.NoError(t, c.quiet(t.Context()))
	require.NoError(t, c.compare())
}
