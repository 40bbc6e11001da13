// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"testing"

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
			h := newHarness(t, func(*harness) {})
			put(h, h.NetworkPolicies, policy("p", "app=none", pods("app=web")))
			h.marker(1)
			c := &chooser{members: &members{memberParams: memberParams{Namespaces: h.Namespaces, Selectors: h.selectors}}, role: bpf.RolePeer}
			rounds := func(rounds, each int) {
				for round := range rounds {
					txn := h.db.ReadTxn()
					c.begin(txn)
					for i := range each {
						c.choosing(txn, tables.NewLabelSet("a", "", labelsOf(round*each+i), nil))
					}
					c.end()
				}
			}
			remembers := func() int { return len(c.spaces) + len(c.labelled) + len(c.required) }
			rounds(10, 1)
			require.Greater(t, remembers(), 10)
			rounds(1, many)
			require.Zero(t, remembers(), "after a round of many")
			rounds(many, 1)
			require.LessOrEqual(t, remembers(), mostRemembered, "after many rounds")
		})
	}
}
