// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// What a round has looked up stays for the next one, but not when it is much.
func TestChooserForgets(t *testing.T) {
	const many = 4 * mostRemembered
	for name, labelsOf := range map[string]func(i int) labels.Set{
		"values": func(i int) labels.Set { return labels.Set{"app": fmt.Sprint(i)} },
		"keys":   func(i int) labels.Set { return labels.Set{fmt.Sprint("job-", i): "yes"} },
	} {
		t.Run(name, func(t *testing.T) {
			var endpoints []*tables.Endpoint
			for i := range 2 * many {
				endpoints = append(endpoints, pod(fmt.Sprint("a/p", i), "there", netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String(), labelsOf(i)))
			}
			db := statedb.New()
			m := newMembers(newMemberParams(t, db, manySelectors(t, 1), endpoints))
			c := m.partitions[bpf.RolePeer].chooser
			rounds := func(rounds, each int) {
				for range rounds {
					var keys []memberKey
					for _, e := range endpoints[:each] {
						keys = append(keys, memberKey{role: bpf.RolePeer, set: e.LabelSet.ID})
					}
					m.plan(db.ReadTxn(), keys)
					endpoints = endpoints[each:]
				}
			}
			remembers := func() int { return len(c.spaces) + len(c.labelled) + len(c.required) }
			rounds(10, 1)
			require.Greater(t, remembers(), 10)
			rounds(1, many)
			require.Zero(t, remembers(), "after a round of many")
			rounds(many/2, 1)
			require.LessOrEqual(t, remembers(), mostRemembered, "after many rounds")
		})
	}
}
