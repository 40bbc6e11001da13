// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Packet is the first one of a flow, as seen at a pod of this node.
type Packet struct {
	Subject   netip.Addr // of the pod
	Peer      netip.Addr // the other side
	Direction bpf.Direction
	Protocol  uint8
	Port      uint16 // of the destination; of ICMP the type; else 0
}

func (p Packet) String() string {
	return fmt.Sprintf(
		"%s of %s with %s, protocol %d port %d", p.Direction, p.Subject, p.Peer, p.Protocol, p.Port,
	)
}

// Verdict says whether a packet is allowed, and why: the item of a policy, or the reason if no item
// decides. The subject must be a pod of this node.
func (w *World) Verdict(p Packet) (allowed bool, why string) {
	subject, peer := w.party(p.Subject), w.party(p.Peer)
	switch {
	case subject.pod == nil || subject.pod.Node != w.LocalNode:
		return false, "no pod of this node"
	case w.Enforcement == "never":
		return true, "policies are not enforced"
	case w.HostAllowed && p.Direction == bpf.DirectionIngress && peer.host:
		return true, "from the node itself"
	case w.IsHeld(p.Subject):
		return false, "its namespace is not known"
	}
	allowedBy := ""
	deniedBy := ""
	if w.Enforcement == "always" {
		deniedBy = "enforced always"
	}
	for _, policy := range w.Policies {
		for i := range policy.Rules {
			rule := &policy.Rules[i]
			if !w.selects(rule.Subject, subject.pod) {
				continue
			}
			direction := &rule.Ingress
			if p.Direction == bpf.DirectionEgress {
				direction = &rule.Egress
			}
			if direction.DefaultDeny {
				deniedBy = "default deny of " + policy.ID().String()
			}
			for j := range direction.Traffic {
				item := &direction.Traffic[j]
				switch {
				case !w.concerns(item, p):
				case item.Deny:
					return false, policy.ID().String() + " " + item.Field
				default:
					allowedBy = policy.ID().String() + " " + item.Field
				}
			}
		}
	}
	switch {
	case allowedBy != "":
		return true, allowedBy
	case deniedBy != "":
		return false, deniedBy
	}
	return true, "no policy denies"
}

// concerns reports whether an item of a policy matches a packet.
func (w *World) concerns(item *tables.PolicyTraffic, p Packet) bool {
	if len(item.Ports) > 0 && !slices.ContainsFunc(
		item.Ports, func(port tables.PolicyPort) bool { return w.isPort(port, p) },
	) {
		return false
	}
	return item.AnyPeer || slices.ContainsFunc(
		item.Peers, func(peer tables.PolicyPeer) bool { return w.isPeer(&peer, p.Peer) },
	)
}

// isPort reports whether a packet goes to a port. A name is looked up at the pod that the packet
// goes to.
func (w *World) isPort(port tables.PolicyPort, p Packet) bool {
	if port.Protocol != p.Protocol {
		return false
	}
	if port.Name == "" {
		return port.First <= p.Port && p.Port <= port.Last
	}
	destination := p.Peer
	if p.Direction == bpf.DirectionIngress {
		destination = p.Subject
	}
	pod := w.Pod(destination)
	return pod != nil && slices.Contains(
		pod.LabelSet.NamedPorts, tables.NamedPort{Name: port.Name, Protocol: p.Protocol, Port: p.Port},
	)
}

// isPeer reports whether an address is among the peers that an item names.
func (w *World) isPeer(peer *tables.PolicyPeer, addr netip.Addr) bool {
	key := peerKey{peer.String(), addr}
	is, known := w.memo.peers[key]
	if !known {
		is = w.isPeerNow(peer, addr)
		if w.memo.peers == nil {
			w.memo.peers = map[peerKey]bool{}
		}
		w.memo.peers[key] = is
	}
	return is
}

func (w *World) isPeerNow(peer *tables.PolicyPeer, addr netip.Addr) bool {
	at := w.party(addr)
	switch peer.Kind {
	case tables.PeerPods:
		return at.pod != nil && w.selects(peer.Pods, at.pod)
	case tables.PeerNodes:
		return at.node != nil && w.matches(peer.Labels, at.node.Labels)
	case tables.PeerEntity:
		return w.isEntity(peer.Entity, at, addr)
	case tables.PeerCIDR:
		return w.mayMean(at, peer.MatchesPods) && peer.CIDR.Contains(addr) && !contains(peer.Except, addr)
	case tables.PeerCIDRGroups:
		return w.mayMean(at, peer.MatchesPods) && !contains(peer.Except, addr) &&
			slices.ContainsFunc(w.Groups, func(g *tables.CIDRGroup) bool {
				if peer.Group != "" {
					return g.Name == peer.Group && contains(g.Prefixes, addr)
				}
				return w.matches(peer.Labels, g.Labels) && contains(g.Prefixes, addr)
			})
	case tables.PeerServices:
		return slices.ContainsFunc(w.Services, func(s *tables.Service) bool {
			switch {
			case peer.Service.Name != "":
				return s.Name == peer.Service && w.serves(s, at, addr, peer.Wide)
			case peer.Service.Namespace != "" && s.Namespace != peer.Service.Namespace:
				return false
			}
			return w.matches(peer.Labels, s.Labels) && w.serves(s, at, addr, peer.Wide)
		})
	}
	return false
}

// mayMean reports whether prefixes can select an address: one outside the cluster always, others if
// prefixes select addresses of that kind.
func (w *World) mayMean(at party, matchesPods bool) bool {
	switch {
	case !at.cluster || matchesPods:
		return true
	case at.node != nil || at.host:
		return w.CIDRNodes
	}
	return w.CIDRPods // also addresses without a pod
}

// serves reports whether an address is of a backend of a service, or may be.
func (w *World) serves(s *tables.Service, at party, addr netip.Addr, may bool) bool {
	if len(s.Selector) == 0 {
		return w.isBackend(s.Name, addr)
	}
	if at.pod == nil || at.pod.Namespace != s.Namespace {
		return false
	}
	for key, value := range s.Selector {
		if known := !slices.Contains(s.Churning, key); known &&
			at.pod.LabelSet.Labels.Get(key) != value || !known && !may {
			return false
		}
	}
	return true
}

func (w *World) isBackend(service tables.Name, addr netip.Addr) bool {
	return slices.ContainsFunc(w.Backends, func(b *tables.BackendSlice) bool {
		return b.Service == service && slices.Contains(b.Addrs, addr)
	})
}

func (w *World) isEntity(entity tables.PolicyEntity, at party, addr netip.Addr) bool {
	switch entity {
	case tables.EntityAll:
		return true
	case tables.EntityWorld:
		return !at.cluster
	case tables.EntityWorldIPv4:
		return !at.cluster && addr.Is4()
	case tables.EntityWorldIPv6:
		return !at.cluster && addr.Is6()
	case tables.EntityCluster:
		return at.cluster
	case tables.EntityHost:
		return at.host
	case tables.EntityRemoteNode:
		return at.node != nil && !at.host
	case tables.EntityKubeAPIServer:
		return w.isBackend(tables.Name{Namespace: "default", Name: "kubernetes"}, addr)
	}
	return false // no address has this entity
}
