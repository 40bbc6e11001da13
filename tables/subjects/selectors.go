// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// selector returns the number of a selector, which comes into use for a namespace if it is
// not in use yet.
func (c *round) selector(spec tables.SelectorSpec, namespace string) (uint32, error) {
	if s, _, found := c.Selectors.Get(c.out, tables.SelectorByDigest(spec.Digest())); found {
		return s.Number, nil
	}
	s, err := c.resolve(c.in, tables.Selector{
		Life: tables.Life{Number: c.number()}, SelectorSpec: spec, Namespace: namespace,
	})
	if err != nil {
		return 0, err
	}
	return s.Number, c.enterUse(s)
}

// updateSelector brings a selector in use up to date with the objects that it names.
func (c *round) updateSelector(digest bpf.Digest) error {
	former, _, found := c.Selectors.Get(c.out, tables.SelectorByDigest(digest))
	if !found {
		return nil
	}
	s, err := c.resolve(c.in, tables.Selector{
		Life: former.Life, SelectorSpec: former.SelectorSpec, Namespace: former.Namespace,
	})
	if err != nil || s.SameResolution(former) && former.NoRoom == "" {
		return err
	}
	if addsPrefixes(former, s) {
		if c.grown { // what is in use is counted anew for each: another transaction does it
			c.mark(key{kind: ofSelector, digest: digest})
			return nil
		}
		c.grown = true
		if noRoom := c.outgrows(former, s); noRoom != "" {
			outgrown := *former
			outgrown.NoRoom = noRoom
			for r := range c.Rulesets.List(c.out, tables.RulesetsBySelector(s.Number)) {
				c.markRuleset(c.out, r, c.mark)
			}
			return c.replaceUse(&outgrown)
		}
	}
	if addsPrefixes(s, former) || former.NoRoom != "" {
		c.markIsolated(c.out, c.mark)
	}
	return c.replaceUse(s)
}

// addsPrefixes reports whether a version of a selector names prefixes that a former one does not
// name.
func addsPrefixes(former, now *tables.Selector) bool {
	return slices.ContainsFunc(now.Prefixes(),
		func(p netip.Prefix) bool { return !former.Names(p) })
}

// resolve fills in the pods, prefixes, nodes or entity that a selector stands for, with the objects
// that it names as they are.
func (r *rule) resolve(in statedb.ReadTxn, s tables.Selector) (*tables.Selector, error) {
	for _, peer := range s.Peers {
		switch peer.Kind {
		case tables.PeerPods:
			s.Pods = append(s.Pods, peer.Pods)
		case tables.PeerCIDR:
			s.MatchesPods = r.CIDRMatch.Pods || peer.MatchesPods
			s.MatchesNodes = r.CIDRMatch.Nodes || peer.MatchesPods
			if tables.IsFamily(peer) {
				s.Family = bpf.FamilyIPv4
				if peer.CIDR.Addr().Is6() {
					s.Family = bpf.FamilyIPv6
				}
				continue
			}
			s.Blocks = append(s.Blocks, tables.Block{
				Prefix: peer.CIDR, Except: ordered(peer.Except),
			})
		case tables.PeerCIDRGroups:
			s.MatchesPods = r.CIDRMatch.Pods || peer.MatchesPods
			s.MatchesNodes = r.CIDRMatch.Nodes || peer.MatchesPods
			except := ordered(peer.Except)
			for g := range r.CIDRGroups.All(in) {
				if !namesGroup(peer, g) {
					continue
				}
				for _, prefix := range g.Prefixes {
					s.Blocks = append(s.Blocks, tables.Block{Prefix: prefix, Except: except})
				}
			}
		case tables.PeerServices:
			r.resolveServices(in, peer, &s)
		case tables.PeerEntity:
			s.Entity = peer.Entity
			if peer.Entity == tables.EntityKubeAPIServer {
				s.MatchesPods, s.MatchesNodes = true, true
				s.Blocks = r.backendsOf(in, tables.KubernetesAPIService)
			}
		}
	}
	slices.SortFunc(s.Blocks, tables.Block.Compare)
	s.Blocks = slices.CompactFunc(s.Blocks, tables.Block.Equal)
	selector, err := tables.NewSelector(s)
	if err != nil {
		return nil, fmt.Errorf("resolve selector %s: %w", s.Text, err)
	}
	return selector, nil
}

// resolveServices adds the pods of services that select pods, and the backends of other services.
func (r *rule) resolveServices(in statedb.ReadTxn, peer tables.PolicyPeer, s *tables.Selector) {
	services := r.Services.All(in)
	if peer.Service.Name != "" {
		services = r.Services.List(in, tables.ServiceByName(peer.Service))
	}
	s.MatchesPods, s.MatchesNodes = true, true
	for service := range services {
		switch {
		case !namesService(peer, service):
		case len(service.Selector) == 0:
			s.Blocks = append(s.Blocks, r.backendsOf(in, service.Name)...)
		case len(service.Churning) == 0 || peer.Wide:
			pods := podsOf(service)
			if _, err := tables.NewPodMatcher(pods); err == nil { // no pod has such labels
				s.Pods = append(s.Pods, pods)
			}
		}
	}
}

// podsOf returns the selector of the pods that serve a service, or may.
func podsOf(s *tables.Service) tables.EgressSelector {
	text := func(set labels.Set) string { return labels.SelectorFromSet(set).String() }
	return tables.EgressSelector{
		Namespaces: text(labels.Set{corev1.LabelMetadataName: s.Namespace}), Pods: text(s.Kept()),
	}
}

func (r *rule) backendsOf(in statedb.ReadTxn, service tables.Name) (blocks []tables.Block) {
	for b := range r.Backends.List(in, tables.BackendSlicesByService(service)) {
		for _, a := range b.Addrs {
			blocks = append(blocks, tables.Block{Prefix: netip.PrefixFrom(a, a.BitLen())})
		}
	}
	return blocks
}

func ordered(prefixes []netip.Prefix) []netip.Prefix {
	prefixes = slices.Clone(prefixes)
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}

// namesGroup reports whether a peer names a group of prefixes, by its name or labels.
func namesGroup(peer tables.PolicyPeer, g *tables.CIDRGroup) bool {
	if peer.Group != "" {
		return peer.Group == g.Name
	}
	s, err := labels.Parse(peer.Labels)
	return err == nil && s.Matches(g.Labels)
}

// namesService reports whether a peer names a service, by its name or labels.
func namesService(peer tables.PolicyPeer, s *tables.Service) bool {
	if peer.Service.Name != "" {
		return peer.Service == s.Name
	}
	if peer.Service.Namespace != "" && peer.Service.Namespace != s.Namespace {
		return false
	}
	selector, err := labels.Parse(peer.Labels)
	return err == nil && selector.Matches(s.Labels)
}

// markSelectors marks the selectors in use of a kind that name something that has changed, and the
// pods that are isolated perhaps because of it.
func (r *rule) markSelectors(
	in statedb.ReadTxn, kind tables.PeerKind, names func(tables.PolicyPeer) bool, mark func(key),
) {
	for s := range r.Selectors.List(in, tables.SelectorsByKind(kind)) {
		if slices.ContainsFunc(s.Peers, names) {
			mark(key{kind: ofSelector, digest: s.Digest()})
		}
	}
	r.markIsolated(in, mark)
}

func (r *rule) markCIDRGroup(in statedb.ReadTxn, old, new *tables.CIDRGroup, mark func(key)) {
	r.markSelectors(in, tables.PeerCIDRGroups, func(p tables.PolicyPeer) bool {
		return old != nil && namesGroup(p, old) || new != nil && namesGroup(p, new)
	}, mark)
}

func (r *rule) markService(in statedb.ReadTxn, old, new *tables.Service, mark func(key)) {
	if old != nil && new != nil && maps.Equal(old.Labels, new.Labels) &&
		maps.Equal(old.Selector, new.Selector) && slices.Equal(old.Churning, new.Churning) {
		return
	}
	r.markSelectors(in, tables.PeerServices, func(p tables.PolicyPeer) bool {
		return old != nil && namesService(p, old) || new != nil && namesService(p, new)
	}, mark)
}

func (r *rule) markBackends(in statedb.ReadTxn, b *tables.BackendSlice, mark func(key)) {
	if b.Service == tables.KubernetesAPIService {
		r.markSelectors(in, tables.PeerEntity, func(p tables.PolicyPeer) bool {
			return p.Entity == tables.EntityKubeAPIServer
		}, mark)
	}
	s, _, found := r.Services.Get(in, tables.ServiceByName(b.Service))
	if found && len(s.Selector) == 0 { // else its backends do not matter
		r.markSelectors(in, tables.PeerServices, func(p tables.PolicyPeer) bool {
			return namesService(p, s)
		}, mark)
	}
}
