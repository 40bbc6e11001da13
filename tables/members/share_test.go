// SPDX-License-Identifier: Apache-2.0

package members

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// The pods of a namespace that its share of exact and of coarse classes has no room for are
// refused, and those of others are not. When the namespace has fewer, they get classes.
func TestShare(t *testing.T) {
	const share, labelSets = 3, 9
	h := newHarnessWith(t, share)
	for i := range labelSets {
		h.use(pods(fmt.Sprintf("n=%d", i)))
	}
	address := func(namespace, i int) string { return fmt.Sprintf("10.1.%d.%d", namespace, i) }
	endpoint := func(namespace, i int) *tables.Endpoint {
		return pod(fmt.Sprintf("%c/pod-%d", 'a'+namespace, i), "there", address(namespace, i),
			labels.Set{"n": fmt.Sprint(i), "of": fmt.Sprint(namespace)})
	}
	refused := func(namespace int) int {
		var addrs []netip.Addr
		for i := range labelSets {
			if a := addr(address(namespace, i)); h.row(a).Prefix.IsSingleIP() {
				addrs = append(addrs, a)
			}
		}
		return h.precisions(addrs)[tables.Refused]
	}
	for i := range labelSets {
		h.inputs.Endpoints.Put(endpoint(0, i))
		h.settle()
	}
	require.Equal(t, labelSets-2*share, refused(0))

	// The classes of another namespace are its own, but for those that there are already.
	for i := range labelSets {
		h.inputs.Endpoints.Put(endpoint(1, i))
		h.settle()
	}
	require.Zero(t, refused(1))
	require.Equal(t, labelSets-2*share, refused(0), "members keep what was said of them")

	// A class that a pod of another namespace has needs no room.
	h.inputs.Endpoints.Remove(endpoint(0, labelSets-1))
	h.settle()
	h.inputs.Endpoints.Put(endpoint(0, labelSets-1))
	h.settle()
	require.Equal(t, labelSets-2*share-1, refused(0))

	// Room that becomes free is used.
	for i := range labelSets {
		h.inputs.Endpoints.Remove(endpoint(1, i))
	}
	h.inputs.Endpoints.Remove(endpoint(0, 0))
	h.inputs.Endpoints.Remove(endpoint(0, 1))
	h.settle()
	require.Zero(t, refused(0))
}

// precisions counts addresses by the precision of their classes.
func (h *harness) precisions(addrs []netip.Addr) map[tables.Precision]int {
	counts := map[tables.Precision]int{}
	for _, a := range addrs {
		counts[h.class(a).Precision]++
	}
	return counts
}

// Policies of another namespace that tell pods apart make some classes coarse. These still say what
// policies of the pods' namespace, cluster-wide ones, and selectors of whole namespaces say.
func TestCoarse(t *testing.T) {
	const share, labelSets = 2, 6
	h := newHarnessWith(t, share)
	own := h.useIn("a", pods("odd=1,io.kubernetes.pod.namespace=a"))[0]
	everywhere := h.use(pods("odd=1"))[0]
	whole := h.useIn("b", podsOf("kubernetes.io/metadata.name=a"))[0]
	var addrs []netip.Addr
	for i := range labelSets {
		address := fmt.Sprintf("10.1.0.%d", i)
		addrs = append(addrs, addr(address))
		h.inputs.Endpoints.Put(pod(fmt.Sprint("a/pod-", i), "there", address,
			labels.Set{"n": fmt.Sprint(i), "odd": fmt.Sprint(i % 2)}))
	}
	h.settle()
	require.Equal(t, map[tables.Precision]int{tables.Exact: labelSets}, h.precisions(addrs))

	var foreign []*tables.Selector
	for i, peer := range []tables.PolicyPeer{
		pods("n=0"), pods("n=1"), pods("n in (2,3),io.kubernetes.pod.namespace=a"),
		cidr("10.1.0.4/32", true), cidr("10.1.0.0/30", true),
	} {
		s := h.useIn(fmt.Sprint("tenant-", i), peer)
		require.True(t, s[0].Foreign)
		foreign = append(foreign, s...)
	}
	h.settle()
	counts := h.precisions(addrs)
	require.Equal(t, labelSets, counts[tables.Exact]+counts[tables.Coarse])
	require.NotZero(t, counts[tables.Coarse])
	for i, a := range addrs {
		class := h.class(a)
		for _, s := range []*tables.Selector{own, everywhere} {
			require.False(t, s.Foreign)
			require.Equal(t, i%2 == 1, class.Selects(s.Number), "%v: %s", a, s.Text)
		}
		require.True(t, class.Selects(whole.Number), a)
		if class.Precision == tables.Coarse {
			for _, s := range foreign {
				require.False(t, class.Selects(s.Number), "%v: %s", a, s.Text)
				require.True(t, class.Omits(s))
			}
		}
	}

	for _, s := range foreign {
		h.inputs.Selectors.Remove(s)
	}
	h.settle()
	require.Equal(t, map[tables.Precision]int{tables.Exact: labelSets}, h.precisions(addrs))
}

// Pods of two namespaces may be of one coarse class, which counts for one of them. Those of the
// other have exact ones again as soon as it has room.
func TestCoarseClassOfTwoNamespaces(t *testing.T) {
	const share = 2
	h := newHarnessWith(t, share)
	for i := range 2 * (share + 1) {
		h.useIn("tenant", pods(fmt.Sprintf("n=%d", i)))
	}
	of := func(namespace string, i int) *tables.Endpoint {
		n := i
		if namespace == "b" {
			n += share + 1
		}
		return pod(fmt.Sprintf("%s/pod-%d", namespace, i), "there",
			fmt.Sprintf("10.1.%d.%d", namespace[0], i), labels.Set{"n": fmt.Sprint(n)})
	}
	for _, namespace := range []string{"a", "b"} {
		for i := range share + 1 {
			h.inputs.Endpoints.Put(of(namespace, i))
			h.settle()
		}
	}
	last := of("b", share).Addrs[0]
	require.Equal(t, tables.Coarse, h.class(last).Precision)
	require.Equal(t, "a", h.class(last).Namespace)
	h.inputs.Endpoints.Remove(of("b", 0))
	h.settle()
	require.Equal(t, tables.Exact, h.class(last).Precision)
}

// What was refused is refused as long as the kernel may have it, and all members of a class
// leave the refused one together.
func TestRefusedMember(t *testing.T) {
	h := newHarnessWith(t, 1)
	k := newKernel(h, nil)
	h.use(pods("app=x"))
	h.use(pods("app=y"))
	h.use(pods("app=z"))
	exact := pod("a/exact", "there", "10.1.0.1", labels.Set{"app": "x"})
	coarse := pod("a/coarse", "there", "10.1.0.4", labels.Set{"app": "y"})
	second := pod("a/second", "there", "10.1.0.2", labels.Set{"app": "z", "n": "2"})
	third := pod("a/third", "there", "10.1.0.3", labels.Set{"app": "z", "n": "3"})
	for _, e := range []*tables.Endpoint{exact, coarse, second, third} {
		h.inputs.Endpoints.Put(e)
		h.settle()
	}
	k.everything(h.db.ReadTxn())
	h.settle()
	require.Equal(t, tables.Refused, h.class(addr("10.1.0.2")).Precision)
	number := h.row(addr("10.1.0.2")).Member
	h.inputs.Endpoints.Remove(second)
	h.settle()
	m, _, found := h.Members.Get(h.db.ReadTxn(), tables.MemberByNumber(number))
	require.True(t, found)
	require.True(t, m.Undesired)
	c, _, found := h.Classes.Get(h.db.ReadTxn(), tables.ClassByNumber(m.Class))
	require.True(t, found)
	require.Equal(t, tables.Refused, c.Precision)

	h.inputs.Endpoints.Put(second)
	h.settle()
	h.inputs.Endpoints.Remove(exact)
	h.inputs.Endpoints.Remove(coarse)
	h.settle()
	k.all()
	h.settle()
	require.Equal(t, tables.Exact, h.class(addr("10.1.0.2")).Precision)
	require.Equal(t, tables.Exact, h.class(addr("10.1.0.3")).Precision)
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
		require.Equal(t, tables.Exact, h.class(addr(fmt.Sprintf("203.0.113.%d", i))).Precision)
	}
	require.Equal(t, tables.Exact, h.class(addr("10.1.0.1")).Precision,
		"it is in the class of what none selects")
}
