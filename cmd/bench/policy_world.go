// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// policyScenario is a cluster in which each pod has labels that no other has, as
// many as there would be identities. The policies are those that the figures of
// other engines were measured with.
type policyScenario struct {
	identities, policies, local int

	allPods bool // one policy by which all pods may reach all others
}

func (s policyScenario) String() string {
	if s.allPods {
		return fmt.Sprintf("%dxall", s.identities)
	}
	return fmt.Sprintf("%dx%d", s.identities, s.policies)
}

const (
	policyNamespaces = 100
	policyTeams      = 10
	policyTiers      = 20

	// places is after how many pods the next one is in the place of the first.
	places = policyNamespaces * policyTiers

	// remoteNode is the first that is not the measured one, which has only those
	// pods that the scenario wants there.
	remoteNode = 1
)

// place is what policies know of a pod: the labels that are not its own only.
type place struct{ namespace, tier int }

func placeOf(i int) place {
	return place{i % policyNamespaces, i / policyNamespaces % policyTiers}
}

func (p place) team() int { return p.namespace % policyTeams }

func namespaceName(i int) string { return fmt.Sprintf("ns-%d", i) }

// localPod is the i-th pod of the measured node: they are spread over all places.
func (s policyScenario) localPod(i int) int { return i * 7919 % s.identities }

// labeledPod is the i-th pod, alone with its labels.
func labeledPod(i int, node string) *tables.Endpoint {
	p := placeOf(i)
	set := labels.Set{"app": fmt.Sprintf("app-%d", i), "tier": fmt.Sprintf("tier-%d", p.tier)}
	return &tables.Endpoint{
		Name:     tables.Name{Namespace: namespaceName(p.namespace), Name: fmt.Sprintf("pod-%d", i)},
		UID:      fmt.Sprint(i),
		Node:     node,
		Addrs:    []netip.Addr{podAddr(i)},
		Created:  epoch,
		LabelSet: tables.NewLabelSet(namespaceName(p.namespace), "default", set, nil),
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%03d", i) }

// peers are the pods that a policy allows.
type peers struct{ team, tier int }

func peersOf(i int) peers { return peers{i / 7 % policyTeams, i / 3 % policyTiers} }

func (p peers) has(pod int) bool {
	at := placeOf(pod)
	return at.team() == p.team && at.tier == p.tier
}

func (p peers) selector() tables.PolicyPeer {
	return tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{
		Pods: fmt.Sprintf("io.cilium.k8s.namespace.labels.team=team-%d,tier=tier-%d", p.team, p.tier),
	}}
}

func ingressPort(i int) uint16 { return uint16(8000 + i%5000) }
func egressPort(i int) uint16  { return uint16(20000 + i%5000) }

// noPort is one that no policy names.
const noPort = 79

func allow(field string, peer tables.PolicyPeer, port uint16) tables.PolicyDirection {
	return tables.PolicyDirection{DefaultDeny: true, Traffic: []tables.PolicyTraffic{{
		Field: field, Peers: []tables.PolicyPeer{peer}, Ports: []tables.PolicyPort{{Protocol: protocolTCP, First: port, Last: port}},
	}}}
}

const protocolTCP = 6

// selectivePolicy is the i-th policy: of pods in one place, with peers of
// several namespaces, on one port each way.
func selectivePolicy(i int) *tables.NetworkPolicy {
	at, peer := placeOf(i), peersOf(i).selector()
	return &tables.NetworkPolicy{
		Kind:    tables.PolicyCilium,
		Name:    tables.Name{Namespace: namespaceName(at.namespace), Name: fmt.Sprintf("p-%d", i)},
		Created: epoch.Add(time.Duration(i) * time.Second),
		Rules: []tables.PolicyRule{{
			Field:   "spec",
			Subject: subjectSelector(at),
			Ingress: allow("spec.ingress[0]", peer, ingressPort(i)),
			Egress:  allow("spec.egress[0]", peer, egressPort(i)),
		}},
	}
}

// clusterwidePolicy is the i-th policy of all pods: another port for some peers.
func clusterwidePolicy(i int) *tables.NetworkPolicy {
	return &tables.NetworkPolicy{
		Kind:    tables.PolicyCiliumClusterwide,
		Name:    tables.Name{Name: fmt.Sprintf("cc-%d", i)},
		Created: epoch,
		Rules: []tables.PolicyRule{
			{Field: "spec", Ingress: allow("spec.ingress[0]", peersOf(i).selector(), clusterwidePort(i))},
		},
	}
}

// maxPrefixes is how many there are of the prefixes that [prefixesPolicy] may have.
const maxPrefixes = 1 << 16

// prefixesPolicy lets pods in one place reach prefixes outside the cluster.
func prefixesPolicy(at place, n int) *tables.NetworkPolicy {
	traffic := tables.PolicyTraffic{Field: "spec.egress[0]"}
	for i := range n {
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24)
		traffic.Peers = append(
			traffic.Peers,
			tables.PolicyPeer{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{CIDR: prefix}},
		)
	}
	return &tables.NetworkPolicy{
		Kind:    tables.PolicyCilium,
		Name:    tables.Name{Namespace: namespaceName(at.namespace), Name: "prefixes"},
		Created: epoch,
		Rules: []tables.PolicyRule{{
			Field:   "spec",
			Subject: subjectSelector(at),
			Egress:  tables.PolicyDirection{Traffic: []tables.PolicyTraffic{traffic}},
		}},
	}
}

func subjectSelector(at place) tables.EgressSelector {
	return tables.EgressSelector{
		Pods: fmt.Sprintf(
			"io.kubernetes.pod.namespace=%s,tier=tier-%d",
			namespaceName(at.namespace),
			at.tier,
		),
	}
}

func clusterwidePort(i int) uint16 { return uint16(40000 + i) }

// allPodsPolicy is the one by which all pods may reach all others.
func allPodsPolicy() *tables.NetworkPolicy {
	peer := tables.PolicyPeer{Kind: tables.PeerPods}
	return &tables.NetworkPolicy{
		Kind:    tables.PolicyCiliumClusterwide,
		Name:    tables.Name{Name: "all-pods"},
		Created: epoch,
		Rules: []tables.PolicyRule{{Field: "spec", Ingress: tables.PolicyDirection{
			DefaultDeny: true, Traffic: []tables.PolicyTraffic{{Field: "spec.ingress[0]", Peers: []tables.PolicyPeer{peer}}},
		}}},
	}
}

func (s policyScenario) allPolicies() []*tables.NetworkPolicy {
	if s.allPods {
		return []*tables.NetworkPolicy{allPodsPolicy()}
	}
	out := make([]*tables.NetworkPolicy, s.policies)
	for i := range out {
		out[i] = selectivePolicy(i)
	}
	return out
}

// policiesAt are the numbers of the policies that are about pods of a place.
func (s policyScenario) policiesAt(at place) (out []int) {
	for i := at.tier*policyNamespaces + at.namespace; i < s.policies; i += places {
		out = append(out, i)
	}
	return out
}

// perIdentity is how many entries there are for a system that has one for each
// endpoint of the node, peer identity, direction and port, as Cilium has.
func (s policyScenario) perIdentity() (entries int) {
	if s.allPods {
		return s.local * s.identities
	}
	count := map[peers]int{}
	for i := range s.identities {
		at := placeOf(i)
		count[peers{at.team(), at.tier}]++
	}
	for i := range s.local {
		for _, p := range s.policiesAt(placeOf(s.localPod(i))) {
			entries += 2 * count[peersOf(p)]
		}
	}
	return entries
}

// pods are those of the cluster, each at its node.
func (s policyScenario) pods() []*tables.Endpoint {
	local := map[int]bool{}
	for i := range s.local {
		local[s.localPod(i)] = true
	}
	out := make([]*tables.Endpoint, s.identities)
	for i := range out {
		node := nodeName(remoteNode + i%(nodes-1))
		if local[i] {
			node = localNode
		}
		out[i] = labeledPod(i, node)
	}
	return out
}

// peerOf returns a pod that a policy allows, from a number on; or that number's
// pod if there is none.
func (s policyScenario) peerOf(policy, from int) int {
	for i := range s.identities {
		if pod := (from + i) % s.identities; peersOf(policy).has(pod) {
			return pod
		}
	}
	return from
}

// packet returns a random packet to a pod of the measured node, on a port that one of its
// policies names, and whether policies allow it. If they are to, that is looked for.
func (s policyScenario) packet(
	random *rand.Rand, allowed bool,
) (pod, peer int, port uint16, is bool) {
	pod, peer = s.localPod(random.IntN(s.local)), random.IntN(s.identities)
	at := s.policiesAt(placeOf(pod))
	if s.allPods || len(at) == 0 {
		return pod, peer, 80, true
	}
	p := at[random.IntN(len(at))]
	port = ingressPort(p)
	if allowed {
		peer = s.peerOf(p, random.IntN(s.identities))
	}
	is = slices.ContainsFunc(
		at,
		func(p int) bool { return port == ingressPort(p) && peersOf(p).has(peer) },
	)
	return pod, peer, port, is
}
