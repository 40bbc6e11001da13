// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-net/sluice/tables"
)

// resolution says of a selector which of some label sets it selects by labels, and which
// prefixes are in it.
func (o *oracle) resolution(
	peers []tables.PolicyPeer, sets []*tables.LabelSet, prefixes []netip.Prefix,
) string {
	var b strings.Builder
	any := func(is func(tables.PolicyPeer) bool) {
		fmt.Fprint(&b, slices.ContainsFunc(peers, is), " ")
	}
	for _, set := range sets {
		any(func(p tables.PolicyPeer) bool { return o.peerIsPod(p, set) })
	}
	for _, prefix := range prefixes {
		any(func(p tables.PolicyPeer) bool { return o.peerHas(p, prefix) })
	}
	return b.String()
}

func (o *oracle) peerIsPod(p tables.PolicyPeer, set *tables.LabelSet) bool {
	if p.Kind == tables.PeerPods {
		is, _ := o.selects(p.Pods, set)
		return is
	}
	for s := range o.servicesOf(p) {
		if len(s.Selector) == 0 || len(s.Churning) > 0 && !p.Wide || s.Namespace != set.Namespace {
			continue
		}
		matches := true
		for key, value := range s.Selector {
			has, found := set.Labels.Lookup(key)
			matches = matches && (slices.Contains(s.Churning, key) || found && has == value)
		}
		if matches {
			return true
		}
	}
	return false
}

func (o *oracle) servicesOf(p tables.PolicyPeer) func(func(*tables.Service) bool) {
	return func(yield func(*tables.Service) bool) {
		for _, s := range all(o.txn, o.Services) {
			if p.Kind != tables.PeerServices {
				return
			}
			is := p.Service == s.Name
			if p.Service.Name == "" {
				is = (p.Service.Namespace == "" || p.Service.Namespace == s.Namespace) &&
					"team="+s.Labels["team"] == p.Labels
			}
			if is && !yield(s) {
				return
			}
		}
	}
}

func (o *oracle) peerHas(p tables.PolicyPeer, prefix netip.Prefix) bool {
	var in []netip.Prefix
	var except []netip.Prefix
	backends := func(service tables.Name) {
		for _, b := range all(o.txn, o.Backends) {
			if b.Service == service {
				in = append(in, netip.PrefixFrom(b.Addrs[0], b.Addrs[0].BitLen()))
			}
		}
	}
	switch p.Kind {
	case tables.PeerCIDR:
		if in, except = []netip.Prefix{p.CIDR}, p.Except; p.CIDR.Bits() == 0 && len(except) == 0 {
			in = nil // the family
		}
	case tables.PeerCIDRGroups:
		except = p.Except
		for _, g := range all(o.txn, o.CIDRGroups) {
			if p.Group == g.Name || p.Group == "" && p.Labels == "team="+g.Labels["team"] {
				in = append(in, g.Prefixes...)
			}
		}
	case tables.PeerServices:
		for s := range o.servicesOf(p) {
			if len(s.Selector) == 0 {
				backends(s.Name)
			}
		}
	case tables.PeerEntity:
		if p.Entity == tables.EntityKubeAPIServer {
			backends(tables.Name{Namespace: "default", Name: "kubernetes"})
		}
	}
	return covering(in, prefix) >= 0 && covering(except, prefix) < 0
}
