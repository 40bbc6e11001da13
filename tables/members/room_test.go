// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Label sets of a namespace that there is no room for are refused, together. Those of others are
// not, and when the namespace has fewer, none is. So the map of members is never full.
func TestRoomForLabelSets(t *testing.T) {
	const room, labelSets = 64, 40 // 16 of a namespace
	h := newHarness(t)
	h.rule.Room = room
	k := newKernel(h, nil)
	all := h.use(pods(""))[0]
	endpoint := func(namespace, i int) *tables.Endpoint {
		return pod(fmt.Sprintf("%c/p%d", 'a'+namespace, i), "there",
			fmt.Sprintf("10.1.%d.%d,fd00::%d:%d", namespace, i, namespace+1, i),
			labels.Set{"own": fmt.Sprint(i)})
	}
	refused := func(namespace int) (n int) {
		for i := range labelSets {
			for _, a := range endpoint(namespace, i).Addrs {
				row := h.row(a)
				if row.Flags&bpf.IPCachePod == 0 {
					continue
				}
				class := h.class(a)
				isRefused := class.Precision == tables.Refused
				require.NotEqual(t, isRefused, class.Selects(all.Number))
				if isRefused {
					n++
				}
			}
		}
		return n
	}
	for namespace := range 3 {
		for i := range labelSets {
			h.inputs.Endpoints.Put(endpoint(namespace, i))
			h.settle()
			require.LessOrEqual(t, h.Members.NumObjects(h.db.ReadTxn()), room/2)
		}
	}
	require.Equal(t, 2*labelSets-16, refused(0))
	require.Positive(t, refused(1))
	require.Less(t, refused(1), 2*labelSets, "a namespace cannot use it up")
	second := refused(1)

	// Members that the kernel has count until it has none.
	k.everything(h.db.ReadTxn())
	for i := range 8 { // those that are not refused
		h.inputs.Endpoints.Remove(endpoint(0, i))
	}
	h.settle()
	require.Equal(t, 2*labelSets-16, refused(0))
	require.Equal(t, second, refused(1))
	k.all()
	h.settle()
	require.Less(t, refused(0)+refused(1)+refused(2), 6*labelSets-24)
	for namespace := range 2 {
		for i := range labelSets {
			h.inputs.Endpoints.Remove(endpoint(namespace, i))
		}
	}
	for i := 8; i < labelSets; i++ {
		h.inputs.Endpoints.Remove(endpoint(2, i))
	}
	h.settle()
	k.all()
	h.settle()
	require.Zero(t, refused(2))
}
