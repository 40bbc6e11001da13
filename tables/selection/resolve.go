// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

// resolve returns what a peer comes to, with the objects that it names as they are.
func (r *selectorRule) resolve(txn statedb.ReadTxn, peer tables.PolicyPeer) (out tables.Resolution) {
	switch peer.Kind {
	case tables.PeerPods:
		out.Pods = []tables.EgressSelector{peer.Pods}
	case tables.PeerCIDR:
		out.Prefixes, out.Except = []netip.Prefix{peer.CIDR}, peer.Except
		out.MatchesPods, out.MatchesNodes = r.CIDRMatch.pods || peer.MatchesPods, r.CIDRMatch.nodes || peer.MatchesPods
	case tables.PeerCIDRGroups:
		for g := range r.Groups.All(txn) {
			if means(peer, g.Name, g.Labels) {
				out.Prefixes = append(out.Prefixes, g.Prefixes...)
			}
		}
		out.Except = peer.Except
		out.MatchesPods, out.MatchesNodes = r.CIDRMatch.pods || peer.MatchesPods, r.CIDRMatch.nodes || peer.MatchesPods
	case tables.PeerServices:
		r.resolveServices(txn, peer, &out)
	case tables.PeerEntity:
		if peer.Entity == tables.EntityKubeAPIServer {
			out.Prefixes = r.backendsOf(txn, tables.KubernetesAPIService)
			out.MatchesPods, out.MatchesNodes = true, true
		}
	}
	out.Prefixes, out.Except = ordered(out.Prefixes), ordered(out.Except)
	return out
}

// resolveServices adds the pods of services that select some, and the backends of
// those that do not.
func (r *selectorRule) resolveServices(txn statedb.ReadTxn, peer tables.PolicyPeer, out *tables.Resolution) {
	services := r.Services.All(txn)
	if peer.Service.Name != "" {
		services = r.Services.List(txn, tables.ServiceByName(peer.Service))
	}
	out.MatchesPods, out.MatchesNodes = true, true
	for s := range services {
		switch {
		case !meansService(peer, s):
		case len(s.Selector) == 0:
			out.Prefixes = append(out.Prefixes, r.backendsOf(txn, s.Name)...)
		case len(s.Churning) == 0 || peer.Wide:
			out.Pods = append(out.Pods, podsOf(s))
		}
	}
}

// podsOf is the selector of the pods that serve a service, or may.
func podsOf(s *tables.Service) tables.EgressSelector {
	return tables.EgressSelector{
		Namespaces: labels.SelectorFromSet(labels.Set{corev1.LabelMetadataName: s.Namespace}).String(),
		Pods:       labels.SelectorFromSet(s.Kept()).String(),
	}
}

func (r *selectorRule) backendsOf(txn statedb.ReadTxn, service tables.Name) (prefixes []netip.Prefix) {
	for b := range r.Backends.List(txn, tables.BackendSlicesByService(service)) {
		for _, a := range b.Addrs {
			prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return prefixes
}

func ordered(prefixes []netip.Prefix) []netip.Prefix {
	prefixes = slices.Clone(prefixes)
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}

// means reports whether a peer means the group of prefixes with a name and labels.
func means(peer tables.PolicyPeer, name string, set labels.Set) bool {
	if peer.Group != "" {
		return peer.Group == name
	}
	s, err := labels.Parse(peer.Labels)
	return err == nil && s.Matches(set)
}

func meansService(peer tables.PolicyPeer, s *tables.Service) bool {
	if peer.Service.Name != "" {
		return peer.Service == s.Name
	}
	if peer.Service.Namespace != "" && peer.Service.Namespace != s.Namespace {
		return false
	}
	selector, err := labels.Parse(peer.Labels)
	return err == nil && selector.Matches(s.Labels)
}
