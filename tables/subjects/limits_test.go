// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// blocks are peers by n prefixes.
func blocks(from, n int) (peers []tables.PolicyPeer) {
	for i := from; i < from+n; i++ {
		prefix := netip.MustParsePrefix(fmt.Sprintf("203.%d.%d.0/24", i/256, i%256))
		peers = append(peers, tables.PolicyPeer{
			Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{CIDR: prefix},
		})
	}
	return peers
}

func ports(n int) (ports []tables.PolicyPort) {
	for i := range n {
		port := uint16(1000 + 2*i)
		ports = append(ports, tables.PolicyPort{Protocol: 6, First: port, Last: port})
	}
	return ports
}

func allowing(name string, items ...tables.PolicyTraffic) *tables.NetworkPolicy {
	return &tables.NetworkPolicy{
		Kind: tables.PolicyKubernetes, Name: tables.Name{Namespace: "n1", Name: name},
		Rules: []tables.PolicyRule{{
			Field: "spec", Subject: inN1("app=a"),
			Ingress: tables.PolicyDirection{DefaultDeny: true, Traffic: items},
		}},
	}
}

func (h *harness) rulesetOf(addr netip.Addr) *tables.Ruleset {
	txn := h.db.ReadTxn()
	pod, _, _ := h.Pods.Get(txn, tables.PodByAddr(addr))
	subject, _, _ := h.Subjects.Get(txn, tables.SubjectByNumber(pod.Subject))
	r, _, _ := h.Rulesets.Get(txn, tables.RulesetByNumber(subject.Ruleset))
	return r
}

// A rule of 800 prefixes and 800 ports is small, as its prefixes are one selector. As many
// rules of a prefix and 800 ports each are too large: the pod is isolated in their direction,
// the row names the figure and the biggest rule, and other pods have what they had.
func TestTooLarge(t *testing.T) {
	h := smallNode(t)
	a, b := localPod(0, "a").Addr, localPod(3, "b").Addr
	large := tables.PolicyTraffic{Field: "spec.ingress[0]", Peers: blocks(0, 800), Ports: ports(800)}
	h.NetworkPolicies.Put(allow("other", "app=b", 80), allowing("large", large))
	h.work()
	require.Empty(t, h.rulesetOf(a).TooLarge)
	require.Len(t, h.rulesetOf(a).Rules, 2)

	var items []tables.PolicyTraffic
	for i := range 800 {
		items = append(items, tables.PolicyTraffic{
			Field: fmt.Sprintf("spec.ingress[%d]", i), Peers: blocks(i, 1), Ports: ports(800),
		})
	}
	items[3].Ports = ports(900)
	before := h.rulesetOf(b)
	h.NetworkPolicies.Put(allowing("large", items...))
	h.work()
	r := h.rulesetOf(a)
	require.Regexp(t,
		`^at least 64\d{4} entries, more than --max-ruleset-entries=16384; `+
			`the biggest rule read is NetworkPolicy/n1/large spec.ingress\[3\] with 91\d$`, r.TooLarge)
	require.Len(t, r.Policies, 1)
	require.Len(t, r.Rules, 1)
	require.True(t, r.Rules[0].DefaultDeny)
	require.Equal(t, bpf.DirectionIngress, r.Rules[0].Direction)
	require.Equal(t, before, h.rulesetOf(b))

	h.NetworkPolicies.Put(allowing("large", items[:10]...))
	h.work()
	require.Empty(t, h.rulesetOf(a).TooLarge)
	require.Len(t, h.rulesetOf(a).Rules, 11)
}

// Prefixes that there is no room for isolate the pods of the policy that names them, until
// there is. Prefixes that are in use already need no room.
func TestNoRoom(t *testing.T) {
	h := smallNode(t)
	h.rule.Room = 304 // for 76 selectors and prefixes of a namespace
	a, b := localPod(0, "a").Addr, localPod(3, "b").Addr
	policy := func(name, pods string, from, n int) *tables.NetworkPolicy {
		p := allowing(name, tables.PolicyTraffic{Field: "spec.ingress[0]", Peers: blocks(from, n)})
		p.Rules[0].Subject = inN1(pods)
		return p
	}
	first := policy("first", "app=a", 0, 60)
	h.NetworkPolicies.Put(first)
	h.work()
	h.NetworkPolicies.Put(policy("same", "app=b", 0, 60))
	h.work()
	require.Empty(t, h.rulesetOf(b).TooLarge)
	h.NetworkPolicies.Put(policy("same", "app=b", 0, 1))
	h.work()
	require.Empty(t, h.rulesetOf(b).TooLarge)
	h.NetworkPolicies.Put(policy("same", "app=b", 100, 40))
	h.work()
	require.Equal(t, "41 more selectors and prefixes, beside 63 of namespace n1 and 0 of "+
		"others: more than --map-size-peers=304 has room for", h.rulesetOf(b).TooLarge)
	require.Len(t, h.rulesetOf(b).Rules, 1)
	require.Empty(t, h.rulesetOf(a).TooLarge)

	h.NetworkPolicies.Remove(first)
	h.work()
	require.Empty(t, h.rulesetOf(b).TooLarge)
	require.Len(t, h.rulesetOf(b).Rules, 2)
}

// A ruleset that the maps have no room for isolates its pods, until there is room for what it
// needs, or its policies change.
func TestRefusedRuleset(t *testing.T) {
	h := smallNode(t)
	a, b := localPod(0, "a").Addr, localPod(3, "b").Addr
	large := tables.PolicyTraffic{Field: "spec.ingress[0]", Peers: blocks(0, 3), Ports: ports(3)}
	h.NetworkPolicies.Put(allow("other", "app=b", 80), allowing("large", large))
	h.work()
	before, other := h.rulesetOf(a), h.rulesetOf(b)
	txn := h.db.ReadTxn()
	pod, _, _ := h.Pods.Get(txn, tables.PodByAddr(a))
	mirror := &tables.SubjectMirror{
		Key: bpf.SubjectKey{Subject: pod.Subject}, Value: bpf.SubjectValue{Ruleset: before.Number},
		Present: true,
	}
	h.SubjectMirrors.Put(mirror)

	needs := tables.RulesetSize{Entries: 400, Verdicts: 20}
	used := &tables.PolicyUsage{Namespace: "n2", Entries: int(bpf.DefaultConfig.MapSizePolicy) / 2}
	h.Usage.Put(used)
	refusal := &tables.RulesetRefusal{Ruleset: before.Number, Needs: needs}
	h.Refusals.Put(refusal)
	h.work()
	r := h.rulesetOf(a)
	require.Equal(t, "it needs 400 entries of sluice_policy and 20 of sluice_verdicts, or more, "+
		"and there is no room for it: see policy-usage", r.TooLarge)
	require.Equal(t, before.Policies, r.Policies)
	require.Len(t, r.Rules, 1)
	require.True(t, r.Rules[0].DefaultDeny)
	require.Equal(t, other, h.rulesetOf(b))
	_, _, found := h.Rulesets.Get(h.db.ReadTxn(), tables.RulesetByNumber(before.Number))
	require.True(t, found, "the kernel has it")

	h.SubjectMirrors.Remove(mirror)
	h.work()
	_, _, found = h.Rulesets.Get(h.db.ReadTxn(), tables.RulesetByNumber(before.Number))
	require.False(t, found)
	h.Refusals.Remove(refusal)
	h.work()
	less := tables.Clone(used)
	less.Entries--
	h.Usage.Put(less)
	h.work()
	require.NotEmpty(t, h.rulesetOf(a).TooLarge, "there is still no room for 400 entries")

	large.Ports = ports(2)
	h.NetworkPolicies.Put(allowing("large", large))
	h.work()
	require.Empty(t, h.rulesetOf(a).TooLarge, "it is another ruleset")
	large.Ports = ports(3)
	h.NetworkPolicies.Put(allowing("large", large))
	h.work()
	require.Empty(t, h.rulesetOf(a).TooLarge, "what another time needed is not remembered")

	h.Refusals.Put(&tables.RulesetRefusal{Ruleset: h.rulesetOf(a).Number, Needs: needs})
	h.work()
	require.NotEmpty(t, h.rulesetOf(a).TooLarge)
	h.Usage.Remove(less)
	h.work()
	require.Empty(t, h.rulesetOf(a).TooLarge, "there is room")
	require.Len(t, h.rulesetOf(a).Rules, 2)
}

// A group of prefixes that grows in use until there is no room isolates the pods of the policies
// that name it, until it shrinks or others leave it room. Meanwhile it stands for what it did.
func TestNoRoomForGroup(t *testing.T) {
	h := smallNode(t)
	h.rule.Room = 304 // for 76 selectors and prefixes of a namespace
	a, b := localPod(0, "a").Addr, localPod(3, "b").Addr
	group := func(n int) {
		g := &tables.CIDRGroup{Name: "g"}
		for _, p := range blocks(0, n) {
			g.Prefixes = append(g.Prefixes, p.CIDR)
		}
		h.CIDRGroups.Put(g)
		h.work()
	}
	byGroup := tables.PolicyTraffic{Field: "spec.ingress[0]", Peers: []tables.PolicyPeer{{
		Kind: tables.PeerCIDRGroups, PeerPrefixes: &tables.PeerPrefixes{Group: "g"},
	}}}
	h.NetworkPolicies.Put(allowing("grouped", byGroup))
	group(50)
	require.Empty(t, h.rulesetOf(a).TooLarge)
	before := h.rulesetOf(b)

	group(80)
	require.Equal(t, "81 more selectors and prefixes, beside 0 of namespace n1 and 0 of "+
		"others: more than --map-size-peers=304 has room for", h.rulesetOf(a).TooLarge)
	require.Equal(t, before, h.rulesetOf(b))
	require.Zero(t, h.Selectors.NumObjects(h.db.ReadTxn()))
	group(1000)
	require.NotEmpty(t, h.rulesetOf(a).TooLarge)
	require.Zero(t, h.Selectors.NumObjects(h.db.ReadTxn()))
	group(70)
	require.Empty(t, h.rulesetOf(a).TooLarge)

	other := allowing("other", tables.PolicyTraffic{Field: "spec.ingress[0]", Peers: blocks(100, 50)})
	other.Rules[0].Subject = inN1("app=b")
	group(20)
	h.NetworkPolicies.Put(other)
	h.work()
	require.Empty(t, h.rulesetOf(b).TooLarge)
	group(60)
	require.NotEmpty(t, h.rulesetOf(a).TooLarge)
	require.Empty(t, h.rulesetOf(b).TooLarge)
	h.NetworkPolicies.Remove(other)
	h.work()
	require.Empty(t, h.rulesetOf(a).TooLarge)
	for s := range h.Selectors.All(h.db.ReadTxn()) {
		require.Len(t, s.Prefixes(), 60)
	}
}

// A subject that the kernel has in a refused ruleset is isolated before it enters another one, as
// that may wait for classes which wait for the kernel.
func TestRefusedInKernel(t *testing.T) {
	h := smallNode(t)
	a := localPod(0, "a").Addr
	traffic := tables.PolicyTraffic{Field: "spec.ingress[0]", Peers: blocks(0, 3), Ports: ports(3)}
	h.NetworkPolicies.Put(allowing("p", traffic))
	h.work()
	refused := h.rulesetOf(a)
	pod, _, _ := h.Pods.Get(h.db.ReadTxn(), tables.PodByAddr(a))
	mirror := func(ruleset uint32) *tables.SubjectMirror {
		return &tables.SubjectMirror{
			Key: bpf.SubjectKey{Subject: pod.Subject}, Value: bpf.SubjectValue{Ruleset: ruleset},
			Present: true,
		}
	}
	h.SubjectMirrors.Put(mirror(refused.Number))
	traffic.Ports = ports(2)
	h.NetworkPolicies.Put(allowing("p", traffic))
	h.work()
	require.NotEqual(t, refused.Number, h.rulesetOf(a).Number)

	h.Refusals.Put(&tables.RulesetRefusal{
		Ruleset: refused.Number, Needs: tables.RulesetSize{Entries: 9, Verdicts: 9},
	})
	h.work()
	isolating := h.rulesetOf(a)
	require.NotEmpty(t, isolating.TooLarge)
	h.NetworkPolicies.Put(allow("other", "app=a", 80))
	h.work()
	require.Equal(t, isolating.Number, h.rulesetOf(a).Number)

	h.SubjectMirrors.Put(mirror(isolating.Number))
	h.work()
	require.Empty(t, h.rulesetOf(a).TooLarge)
	require.Len(t, h.rulesetOf(a).Policies, 2)
	h.SubjectMirrors.Put(mirror(h.rulesetOf(a).Number))
	h.work()
	require.Len(t, all(h.db.ReadTxn(), h.Rulesets), 1, "none is left over")
}
