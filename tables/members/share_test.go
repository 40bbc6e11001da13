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

// What was refused is refused as long as the kernel may have it, and all members of a class
// leave the refused one together.
func TestRefusedMember(t *testing.T) {
	h := newHarnessWith(t, 1)
	k := newKernel(h, nil)
	h.use(pods("app=x"))
	h.use(pods("app=y"))
	first := pod("a/first", "there", "10.1.0.1", labels.Set{"app": "x"})
	second := pod("a/second", "there", "10.1.0.2", labels.Set{"app": "y", "n": "2"})
	third := pod("a/third", "there", "10.1.0.3", labels.Set{"app": "y", "n": "3"})
	for _, e := range []*tables.Endpoint{first, second, third} {
		h.inputs.Endpoints.Put(e)
		h.settle()
	}
	k.everything(h.db.ReadTxn())
	h.settle()
	require.True(t, h.class(addr("10.1.0.2")).Refused)
	number := h.row(addr("10.1.0.2")).Member
	h.inputs.Endpoints.Remove(second)
	h.settle()
	m, _, found := h.Members.Get(h.db.ReadTxn(), tables.MemberByNumber(number))
	require.True(t, found)
	require.True(t, m.Undesired)
	c, _, found := h.Classes.Get(h.db.ReadTxn(), tables.ClassByNumber(m.Class))
	require.True(t, found)
	require.True(t, c.Refused)

	h.inputs.Endpoints.Put(second)
	h.settle()
	h.inputs.Endpoints.Remove(first)
	h.settle()
	k.all()
	h.settle()
	require.False(t, h.class(addr("10.1.0.2")).Refused)
	require.False(t, h.class(addr("10.1.0.3")).Refused)
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
