// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// World is everything that a verdict depends on, as in the base tables.
type World struct {
	Options

	LocalNode  string
	Namespaces []*tables.Namespace
	Nodes      []*tables.Node
	Cilium     []*tables.CiliumNode // more addresses of the nodes
	Endpoints  []*tables.Endpoint
	Services   []*tables.Service
	Backends   []*tables.BackendSlice
	Groups     []*tables.CIDRGroup
	Policies   []*tables.NetworkPolicy
	Egress     []*tables.EgressPolicy // which also hold pods
	HostAddrs  []netip.Addr           // of this node, by its devices and routes

	memo memo
}

// Options are the flags that verdicts depend on.
type Options struct {
	Enforcement  string // "default", which is also "", "always" or "never"
	HostAllowed  bool   // this node always reaches its pods
	ClusterCIDRs []netip.Prefix

	// Whether the prefixes of Cilium's policies select pods and nodes, too.
	CIDRPods, CIDRNodes bool
}

// memo caches results, so that a test can compute millions of verdicts. A world must not change
// after its first use.
type memo struct {
	selectors map[string]labels.Selector
	labels    map[*tables.Endpoint]subjectLabels
	matches   map[matchKey]bool
	peers     map[peerKey]bool
	parties   map[netip.Addr]party
}

type subjectLabels struct {
	pod, namespace labels.Set
	known          bool // there is an object for the namespace
}

type matchKey struct {
	selector tables.EgressSelector
	pod      *tables.Endpoint
}

type peerKey struct {
	text string
	addr netip.Addr
}

// party is what has an address: a pod, a node, or neither.
type party struct {
	pod     *tables.Endpoint
	node    *tables.Node
	host    bool // this node
	cluster bool // inside the cluster
}

// party finds what has an address.
func (w *World) party(addr netip.Addr) (p party) {
	if p, known := w.memo.parties[addr]; known {
		return p
	}
	for _, e := range w.Endpoints {
		if slices.Contains(e.Addrs, addr) && (p.pod == nil || e.Newer(p.pod)) {
			p.pod = e
		}
	}
	p.host = p.pod == nil && slices.Contains(w.HostAddrs, addr)
	for _, n := range w.Nodes {
		if p.pod == nil && (slices.Contains(w.NodeAddrs(n), addr) || p.host && n.Name == w.LocalNode) {
			p.node = n
			p.host = p.host || n.Name == w.LocalNode
		}
	}
	p.cluster = p.pod != nil || p.node != nil || p.host || contains(w.ClusterCIDRs, addr)
	for _, n := range w.Nodes {
		p.cluster = p.cluster || contains(n.PodCIDRs, addr)
	}
	if w.memo.parties == nil {
		w.memo.parties = map[netip.Addr]party{}
	}
	w.memo.parties[addr] = p
	return p
}

// NodeAddrs returns the addresses of a node.
func (w *World) NodeAddrs(n *tables.Node) []netip.Addr {
	addrs := slices.Concat(n.InternalIPs, n.OtherIPs)
	for _, c := range w.Cilium {
		if c.Name == n.Name {
			addrs = append(addrs, c.Addrs...)
		}
	}
	return addrs
}

// Pod returns the pod that has an address, nil if none.
func (w *World) Pod(addr netip.Addr) *tables.Endpoint { return w.party(addr).pod }

// IsSubject reports whether an address is of a pod of this node.
func (w *World) IsSubject(addr netip.Addr) bool {
	pod := w.Pod(addr)
	return pod != nil && pod.Node == w.LocalNode
}

// IsHost reports whether an address is of this node itself.
func (w *World) IsHost(addr netip.Addr) bool { return w.party(addr).host }

// selects reports whether a selector of pods selects a pod.
func (w *World) selects(s tables.EgressSelector, pod *tables.Endpoint) bool {
	key := matchKey{s, pod}
	is, known := w.memo.matches[key]
	if !known {
		set := w.labelsOf(pod)
		asks := w.asksNamespace(s.Namespaces, "") || w.asksNamespace(s.Pods, namespaceLabels)
		is = (set.known || !asks) && w.matches(s.Namespaces, set.namespace) && w.matches(s.Pods, set.pod)
		if w.memo.matches == nil {
			w.memo.matches = map[matchKey]bool{}
		}
		w.memo.matches[key] = is
	}
	return is
}

const namespaceLabels = "io.cilium.k8s.namespace.labels."

// asksNamespace reports whether a selector requires labels with a prefix, other than the name of
// the namespace.
func (w *World) asksNamespace(selector, prefix string) bool {
	w.matches(selector, nil)
	requirements, _ := w.memo.selectors[selector].Requirements()
	return slices.ContainsFunc(
		requirements, func(r labels.Requirement) bool { return isOfNamespace(r.Key(), prefix) },
	)
}

func isOfNamespace(key, prefix string) bool {
	label, is := strings.CutPrefix(key, prefix)
	return is && label != "kubernetes.io/metadata.name"
}

// IsHeld reports whether a pod's new connections are dropped because its namespace is not known,
// and a policy may select it or not by the labels of that namespace. Pods are not held where
// network policies are not enforced.
func (w *World) IsHeld(addr netip.Addr) bool {
	pod := w.Pod(addr)
	if pod == nil || w.Enforcement == "never" {
		return false
	}
	set := w.labelsOf(pod)
	rest := func(selector, prefix string) bool {
		w.matches(selector, nil)
		requirements, _ := w.memo.selectors[selector].Requirements()
		return !slices.ContainsFunc(requirements, func(r labels.Requirement) bool {
			return !isOfNamespace(r.Key(), prefix) && !r.Matches(
				map[string]labels.Set{"": set.namespace, namespaceLabels: set.pod}[prefix],
			)
		})
	}
	depends := func(s tables.EgressSelector) bool {
		return !w.selects(s, pod) && rest(s.Namespaces, "") && rest(s.Pods, namespaceLabels)
	}
	if set.known || len(w.Policies) == 0 && w.Enforcement != "always" {
		return false
	}
	return slices.ContainsFunc(w.Policies, func(p *tables.NetworkPolicy) bool {
		return slices.ContainsFunc(p.Rules, func(r tables.PolicyRule) bool {
			return depends(r.Subject)
		})
	}) || slices.ContainsFunc(w.Egress, func(p *tables.EgressPolicy) bool {
		return slices.ContainsFunc(p.Selectors, depends)
	})
}

// labelsOf returns the labels of a pod, and of its namespace, that selectors see.
func (w *World) labelsOf(pod *tables.Endpoint) subjectLabels {
	if set, known := w.memo.labels[pod]; known {
		return set
	}
	namespace, known := labels.Set{"kubernetes.io/metadata.name": pod.Namespace}, false
	for _, n := range w.Namespaces {
		if n.Name == pod.Namespace {
			namespace, known = labels.Merge(n.Labels, namespace), true
		}
	}
	set := labels.Merge(pod.LabelSet.Labels.Set(), labels.Set{
		"io.kubernetes.pod.namespace": pod.Namespace, "io.cilium.k8s.policy.cluster": "default",
	})
	if pod.LabelSet.ServiceAccount != "" {
		set["io.cilium.k8s.policy.serviceaccount"] = pod.LabelSet.ServiceAccount
	}
	for k, v := range namespace {
		set[namespaceLabels+k] = v
	}
	if w.memo.labels == nil {
		w.memo.labels = map[*tables.Endpoint]subjectLabels{}
	}
	w.memo.labels[pod] = subjectLabels{set, namespace, known}
	return w.memo.labels[pod]
}

func (w *World) matches(selector string, set labels.Set) bool {
	s, known := w.memo.selectors[selector]
	if !known {
		var err error
		if s, err = labels.Parse(selector); err != nil {
			s = labels.Nothing()
		}
		if w.memo.selectors == nil {
			w.memo.selectors = map[string]labels.Selector{}
		}
		w.memo.selectors[selector] = s
	}
	return s.Matches(set)
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
