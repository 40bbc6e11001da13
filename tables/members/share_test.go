// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// The pods of a namespace that its share of classes has no room for are refused, and those of
// others are not. When the namespace has fewer, they get classes.
func TestShare(t *testing.T) {
	const share, labelSets = 3, 6
	h := newHarnessWith(t, share)
	for i := range labelSets {
		h.use(pods(fmt.Sprintf("n=%d", i)))
	}
	address := func(namespace, i int) string { return fmt.Sprintf("10.1.%d.%d", namespace, i) }
	endpoint := func(namespace, i int) *tables.Endpoint {
		return pod(fmt.Sprintf("%c/pod-%d", 'a'+namespace, i), "there", address(namespace, i),
			labels.Set{"n": fmt.Sprint(i), "of": fmt.Sprint(namespace)})
	}
	refused := func(namespace int) (n int) {
		for i := range labelSets {
			if a := addr(address(namespace, i)); h.row(a).Prefix.IsSingleIP() && h.class(a).Refused {
				n++
			}
		}
		return n
	}
	for i := range labelSets {
		h.inputs.Endpoints.Put(endpoint(0, i))
		h.settle()
	}
	require.Equal(t, labelSets-share, refused(0))

	// The classes of another namespace are its own, but for those that there are already.
	for i := range labelSets {
		h.inputs.Endpoints.Put(endpoint(1, i))
		h.settle()
	}
	require.Zero(t, refused(1))
	require.Equal(t, labelSets-share, refused(0), "members keep what was said of them")

	// A class that a pod of another namespace has needs no room.
	h.inputs.Endpoints.Remove(endpoint(0, labelSets-1))
	h.settle()
	h.inputs.Endpoints.Put(endpoint(0, labelSets-1))
	h.settle()
	require.Equal(t, labelSets-share-1, refused(0))

	// Room that becomes free is used.
	for i := range labelSets {
		h.inputs.Endpoints.Remove(endpoint(1, i))
	}
	h.inputs.Endpoints.Remove(endpoint(0, 0))
	h.inputs.Endpoints.Remove(endpoint(0, 1))
	h.settle()
	require.Zero(t, refused(0))
}

// What is not in a namespace is never refused.
func TestShareOfNone(t *testing.T) {
	h := newHarnessWith(t, 0)
	for i := range 5 {
		h.use(cidr(fmt.Sprintf("203.0.113.%d/32", i), false))
	}
	h.inputs.Endpoints.Put(pod("a/web", "there", "10.1.0.1", nil))
	h.settle()
	for i := range 5 {
		require.False(t, h.class(addr(fmt.Sprintf("203.0.113.%d", i))).Refused)
	}
	require.False(t, h.class(addr("10.1.0.1")).Refused, "it is in the class of what none selects")
}
