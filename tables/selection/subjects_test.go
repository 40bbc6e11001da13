// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"fmt"
	"testing"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// A label set is one of subjects as long as a pod of this node has it, however many
// others have it too.
func TestSubjectAmongMany(t *testing.T) {
	for _, others := range []int{0, few - 1, few, 3 * few} {
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			set := labels.Set{"app": "many"}
			h := newHarness(t, func(h *harness) {
				someCluster(h)
				for i := range others {
					put(h, h.Endpoints, pod(fmt.Sprint("a/many-", i), "there", fmt.Sprintf("10.2.1.%d", i), set))
				}
			})
			last := pod("a/z", here, "10.1.1.1", set)
			isSubject := func(want bool) func(txn statedb.ReadTxn) string {
				return func(txn statedb.ReadTxn) string {
					is := false
					for range h.members.Prefix(txn, tables.ClassMembersOfLabelSet(bpf.RoleSubject, last.LabelSet.ID)) {
						is = true
					}
					if is != want {
						return fmt.Sprintf("it is a subject: %t", is)
					}
					return ""
				}
			}
			h.await(isSubject(false))
			put(h, h.Endpoints, last)
			h.await(isSubject(true))
			remove(h, h.Endpoints, last)
			h.await(isSubject(false))
		})
	}
}
