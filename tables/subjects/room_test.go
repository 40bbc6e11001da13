// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func block(cidr string, except ...string) tables.PolicyPeer {
	p := tables.PolicyPeer{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{
		CIDR: netip.MustParsePrefix(cidr),
	}}
	for _, e := range except {
		p.Except = append(p.Except, netip.MustParsePrefix(e))
	}
	return p
}

// nested are n rules, each of all addresses but one of its own.
func nested(n int) (items []tables.PolicyTraffic) {
	for i := range n {
		except := fmt.Sprintf("20.0.%d.%d/32", i>>8, i&255)
		items = append(items, tables.PolicyTraffic{
			Field: fmt.Sprintf("spec.ingress[%d]", i),
			Peers: []tables.PolicyPeer{block("0.0.0.0/0", except)},
		})
	}
	return items
}

// pairs counts the pairs of a prefix in use and a selector's prefix around it.
func (h *harness) pairs() (pairs int) {
	all := all(h.db.ReadTxn(), h.Selectors)
	prefixes := map[netip.Prefix]bool{}
	for _, s := range all {
		for _, p := range s.Prefixes() {
			prefixes[p] = true
		}
	}
	for p := range prefixes {
		for _, s := range all {
			for _, around := range s.Prefixes() {
				if around.Bits() <= p.Bits() && around.Contains(p.Addr()) {
					pairs++
				}
			}
		}
	}
	return pairs
}

// Rules with a block around the prefixes of all others cost their product: a policy with too many
// isolates its pods. It takes nothing of what other namespaces are guaranteed, even if its blocks
// are around theirs.
func TestNestedBlocks(t *testing.T) {
	h := smallNode(t)
	a, b := localPod(0, "a").Addr, localPod(3, "b").Addr
	half := h.Maps.Entries / 2
	h.NetworkPolicies.Put(allow("other", "app=b", 80), allowing("nested", nested(1000)...))
	h.work()
	require.Equal(t, "too many prefixes inside of others: 1002000 more pairs of a prefix and one "+
		"around it, beside 0 of namespace n1 and 0 of others: more than --map-size-policy=131072 "+
		"has room for", h.rulesetOf(a).TooLarge)
	require.Empty(t, h.rulesetOf(b).TooLarge)
	require.Zero(t, h.pairs())

	h.NetworkPolicies.Put(allowing("nested", nested(230)...))
	h.work()
	require.Empty(t, h.rulesetOf(a).TooLarge)
	require.Equal(t, 230*231+230, h.pairs())

	// A second policy adds pairs with the first one's.
	one := allowing("one", tables.PolicyTraffic{Field: "spec.ingress[0]", Peers: blocks(0, 40)})
	one.Rules[0].Subject = inN1("app=b")
	h.NetworkPolicies.Put(one)
	h.work()
	require.Empty(t, h.rulesetOf(b).TooLarge)
	require.Equal(t, 230*231+230+40*230+40, h.pairs())
	many := nested(8)
	for i := range many {
		many[i].Peers = []tables.PolicyPeer{block("0.0.0.0/0", fmt.Sprintf("30.0.0.%d/32", i))}
	}
	two := allowing("two", many...)
	two.Rules[0].Subject = inN1("app=b")
	h.NetworkPolicies.Put(two)
	h.work()
	require.Contains(t, h.rulesetOf(b).TooLarge, "too many prefixes inside of others")
	require.Less(t, h.pairs(), half+half/2)

	// What another namespace names is inside the blocks of the first.
	elsewhere := &tables.Namespace{Name: "n2"}
	h.Namespaces.Put(elsewhere)
	pod := &tables.LocalEndpoint{
		Addr: netip.MustParseAddr("10.9.9.9"), LabelSet: tables.NewLabelSet("n2", "", nil, nil),
		Endpoint: tables.Name{Namespace: "n2", Name: "pod"},
	}
	h.Locals.Put(pod)
	h.rule.Maps.Entries = h.pairs() // none is left but what is guaranteed
	p := allowing("p", tables.PolicyTraffic{Field: "spec.ingress[0]", Peers: blocks(1000, 100)})
	p.Name.Namespace, p.Rules[0].Subject.Namespaces, p.Rules[0].Subject.Pods = "n2",
		"kubernetes.io/metadata.name=n2", ""
	h.NetworkPolicies.Put(p)
	h.work()
	require.Empty(t, h.rulesetOf(pod.Addr).TooLarge)
}

// Many selectors that an object has name more prefixes hold up no other key: for each of them all
// prefixes in use are counted. With 200 of them, and 15,000 prefixes, that took seconds.
func TestManySelectorsGrow(t *testing.T) {
	const many = 20
	h := smallNode(t)
	group := func(prefixes ...netip.Prefix) {
		h.CIDRGroups.Put(&tables.CIDRGroup{Name: "g", Prefixes: prefixes})
	}
	one, two := netip.MustParsePrefix("20.0.0.1/32"), netip.MustParsePrefix("20.0.0.2/32")
	group(one)
	var items []tables.PolicyTraffic
	for i := range many {
		except := netip.PrefixFrom(netip.AddrFrom4([4]byte{30, 0, 0, byte(i)}), 32)
		items = append(items, tables.PolicyTraffic{
			Field: fmt.Sprintf("spec.ingress[%d]", i),
			Peers: []tables.PolicyPeer{{
				Kind: tables.PeerCIDRGroups,
				PeerPrefixes: &tables.PeerPrefixes{
					Group: "g", Except: []netip.Prefix{except},
				},
			}},
		})
	}
	h.NetworkPolicies.Put(allowing("p", items...))
	h.work()
	grown := func() (n int) {
		for s := range h.rule.Selectors.All(h.db.ReadTxn()) {
			if s.Names(two) {
				n++
			}
		}
		return n
	}
	require.Equal(t, many, h.rule.Selectors.NumObjects(h.db.ReadTxn()))
	group(one, two)
	h.NetworkPolicies.Put(allow("other", "app=b", 80))
	for before := 0; h.step.Step(); before = grown() {
		require.LessOrEqual(t, grown()-before, 1)
		require.NotNil(t, h.rulesetOf(localPod(3, "b").Addr), "in the first transaction")
	}
	require.Equal(t, many, grown())

	// Fewer prefixes cost no count.
	group(one)
	h.step.Step()
	require.Zero(t, grown())
}

// What is computed of what selectors cost is what a count of all pairs says, whatever they are and
// in whatever order they come.
func TestUse(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		prefix := func() netip.Prefix {
			a := netip.AddrFrom4([4]byte{
				10, byte(random.IntN(2)), byte(random.IntN(3)), byte(random.IntN(4)),
			})
			if random.IntN(4) == 0 {
				a = netip.AddrFrom16([16]byte{0: 0x20, 15: byte(random.IntN(4))})
			}
			return netip.PrefixFrom(a, random.IntN(a.BitLen()+1)).Masked()
		}
		h := smallNode(t)
		var all []*tables.Selector
		for i := range 12 {
			s := tables.Selector{Life: tables.Life{Number: uint32(i + 1)}, Namespace: fmt.Sprint(i % 3)}
			s.Text = fmt.Sprint(i)
			s.Peers = []tables.PolicyPeer{{Kind: tables.PeerCIDR}}
			for range 1 + random.IntN(4) {
				b := tables.Block{Prefix: prefix()}
				for range random.IntN(3) {
					b.Except = append(b.Except, prefix())
				}
				s.Blocks = append(s.Blocks, b)
			}
			resolved, err := tables.NewSelector(s)
			require.NoError(t, err)
			all = append(all, resolved)
		}
		wtxn := h.db.WriteTxn(h.rule.Selectors)
		for _, s := range all[:6] {
			_, _, err := h.rule.Selectors.Insert(wtxn, s)
			require.NoError(t, err)
		}
		wtxn.Commit()
		wtxn = h.db.WriteTxn(h.rule.Selectors)
		c := &round{rule: h.rule, in: h.db.ReadTxn(), out: wtxn}
		before := c.inUse(nil).total
		require.Equal(t, h.pairs(), before.pairs)
		own, others := c.inUse(nil).more("1", all[6:])
		for _, s := range all[6:] {
			require.NoError(t, c.enterUse(s))
		}
		entered := c.used
		c.used = nil
		require.Equal(t, c.inUse(nil).total, entered.total)
		require.Equal(t, c.inUse(nil).prefixes, entered.prefixes)
		require.Equal(t, own.objects, entered.total.objects-before.objects)
		require.Equal(t, own.pairs+others, entered.total.pairs-before.pairs)
		but := c.inUse(all[0])
		require.NoError(t, c.leaveUse(all[0]))
		require.Equal(t, c.inUse(nil), but)
		wtxn.Commit()
		require.Equal(t, h.pairs(), but.total.pairs)
		sum := cost{}
		for _, of := range but.of {
			sum = sum.plus(of)
		}
		require.Equal(t, but.total, sum)
	}
}
