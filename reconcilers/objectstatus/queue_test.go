// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// Many policies of one namespace do not hold up those of others.
func TestNamespacesTakeTurns(t *testing.T) {
	queue := newQueue()
	defer queue.ShutDown()
	add := func(namespace, name string) tables.PolicyID {
		id := tables.PolicyID{
			Kind: tables.PolicyCilium, Name: tables.Name{Namespace: namespace, Name: name},
		}
		queue.Add(id)
		return id
	}
	var tenant []tables.PolicyID
	for i := range 1000 {
		tenant = append(tenant, add("tenant", fmt.Sprint(i)))
	}
	egress := tables.EgressPolicyID("gateway")
	queue.Add(egress)
	shop := add("shop", "web")
	var got []tables.PolicyID
	for range 5 {
		id, _ := queue.Get()
		queue.Done(id)
		got = append(got, id)
	}
	require.Equal(t, []tables.PolicyID{tenant[0], egress, shop, tenant[1], tenant[2]}, got)
	require.Equal(t, 997, queue.Len())
}
