// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"
	"strings"
)

// PolicyRule is what a policy says about some pods: its spec, or an item of its
// specs.
type PolicyRule struct {
	Field   string          `json:"field"` // spec or specs[i]
	Subject EgressSelector  `json:"subject"`
	Ingress PolicyDirection `json:"ingress"`
	Egress  PolicyDirection `json:"egress"`
}

// PolicyDirection is what a rule says about traffic to its subject, or from it.
type PolicyDirection struct {
	// DefaultDeny has everything denied that no rule allows. What is wrong with
	// the items does not change it.
	DefaultDeny bool            `json:"defaultDeny"`
	Traffic     []PolicyTraffic `json:"traffic,omitempty"`
}

// PolicyTraffic is an item of a rule: traffic with some peers on some ports that
// is allowed, or denied whatever allows it.
//
// An item with a mistake, or with what the agent does not support, never lets
// more through than is written. An allow is left without what is wrong, and may
// allow nothing then. A deny is left without the restriction that is wrong: it
// denies any peer if one of its peers cannot be used, and all ports if one of
// its ports cannot be.
type PolicyTraffic struct {
	Field string `json:"field"` // such as spec.ingress[1], or a part of it
	Deny  bool   `json:"deny,omitempty"`

	// AnyPeer is without regard to the peer. Otherwise it is one of Peers: with
	// no peers the item has no effect.
	AnyPeer bool         `json:"anyPeer,omitempty"`
	Peers   []PolicyPeer `json:"peers,omitempty"`

	// Ports are those of the destination; none are all, of every protocol.
	Ports []PolicyPort `json:"ports,omitempty"`

	// Unsupported says what the item needs that the agent does not have. If it
	// is an allow it has no peers.
	Unsupported string `json:"unsupported,omitempty"`
}

// PeerKind says what the peers of a [PolicyPeer] are.
type PeerKind string

// Kinds of peers, with the fields of [PolicyPeer] that say which.
const (
	PeerPods       PeerKind = "pods"        // Pods
	PeerNodes      PeerKind = "nodes"       // Labels of the node
	PeerEntity     PeerKind = "entity"      // Entity
	PeerCIDR       PeerKind = "cidr"        // PeerPrefixes: CIDR
	PeerCIDRGroups PeerKind = "cidr-groups" // PeerPrefixes: Group, or Labels of the group
	PeerServices   PeerKind = "services"    // PeerService: Service, or Labels of the service
)

// PolicyPeer is the other side of traffic. Fields of rare kinds are in structs of their own, as
// most peers are pods.
type PolicyPeer struct {
	Kind PeerKind `json:"kind"`

	Pods   EgressSelector `json:"pods,omitzero"`
	Entity PolicyEntity   `json:"entity,omitempty"`

	// Labels is the canonical text of a label selector, empty if it selects all.
	Labels string `json:"labels,omitempty"`

	*PeerPrefixes `yaml:",inline"` // of PeerCIDR and PeerCIDRGroups, else nil
	*PeerService  `yaml:",inline"` // of PeerServices, else nil
}

// PeerPrefixes are peers by their addresses.
type PeerPrefixes struct {
	CIDR   netip.Prefix   `json:"cidr,omitzero"`    // masked
	Except []netip.Prefix `json:"except,omitempty"` // masked; inside CIDR, if that is given

	// MatchesPods is set for prefixes that include the addresses of pods and nodes, as those of
	// Kubernetes do. Others match only outside the cluster. It is always in JSON, so that decoding
	// creates PeerPrefixes.
	MatchesPods bool `json:"matchesPods"`

	Group string `json:"group,omitempty"` // name of a [CIDRGroup], which need not exist
}

// PeerService are the peers that services stand for.
type PeerService struct {
	// Wide is set for services that are denied: where it is not known which pods serve one, it
	// stands for all that may. Otherwise it stands for none of them. It is always in JSON, so that
	// decoding creates PeerService.
	Wide bool `json:"wide"`

	// Service is by name, or if that is empty by Labels: in the namespace, or in
	// any if that is empty. A service that selects pods stands for those, any
	// other for its backends.
	Service Name `json:"service,omitzero" yaml:",omitempty"`
}

// PolicyEntity is a name for a set of peers that labels do not describe.
type PolicyEntity string

// The entities.
const (
	EntityAll           PolicyEntity = "all"
	EntityWorld         PolicyEntity = "world"
	EntityWorldIPv4     PolicyEntity = "world-ipv4"
	EntityWorldIPv6     PolicyEntity = "world-ipv6"
	EntityCluster       PolicyEntity = "cluster"
	EntityHost          PolicyEntity = "host"
	EntityRemoteNode    PolicyEntity = "remote-node"
	EntityKubeAPIServer PolicyEntity = "kube-apiserver"
	EntityInit          PolicyEntity = "init"
	EntityHealth        PolicyEntity = "health"
	EntityUnmanaged     PolicyEntity = "unmanaged"
	EntityIngress       PolicyEntity = "ingress"
	EntityNone          PolicyEntity = "none" // matches nothing
)

// PolicyPort is a range of destination ports of a protocol, or of ICMP types;
// either by number or by name.
type PolicyPort struct {
	Protocol uint8  `json:"protocol"` // IP protocol number
	First    uint16 `json:"first"`
	// not less than First; 65535 with First 0 is whatever the port
	Last uint16 `json:"last"`
	Name string `json:"name,omitempty"` // First and Last are 0 then
}

// All reports whether the port does not matter.
func (p PolicyPort) All() bool { return p.Name == "" && p.First == 0 && p.Last == 65535 }

// String is as in 80/tcp, 8000-8080/udp, http/tcp, type 8/icmp, or all/sctp.
func (p PolicyPort) String() string {
	var port string
	switch {
	case p.Name != "":
		port = p.Name
	case p.All():
		port = "all"
	case p.First == p.Last:
		port = strconv.Itoa(int(p.First))
	default:
		port = strconv.Itoa(int(p.First)) + "-" + strconv.Itoa(int(p.Last))
	}
	protocol, known := protocolNames[p.Protocol]
	if !known {
		protocol = strconv.Itoa(int(p.Protocol))
	}
	if !p.All() && (p.Protocol == 1 || p.Protocol == 58) {
		port = "type " + port
	}
	return port + "/" + protocol
}

var protocolNames = map[uint8]string{
	1: "icmp", 2: "igmp", 4: "ipip", 6: "tcp", 17: "udp", 41: "ipv6", 47: "gre", 50: "esp", 51: "ah",
	58: "icmpv6", 112: "vrrp", 132: "sctp",
}

// MatchesEverything reports whether the peer matches every address. It needs no selector.
func (p PolicyPeer) MatchesEverything() bool {
	return p.Kind == PeerEntity && p.Entity == EntityAll
}

// MatchesNothing reports whether no address has the peer's entity: the agent has no health
// endpoints and no ingress of its own, and knows no unmanaged or initializing pods.
func (p PolicyPeer) MatchesNothing() bool {
	if p.Kind != PeerEntity {
		return false
	}
	switch p.Entity {
	case EntityNone, EntityInit, EntityHealth, EntityUnmanaged, EntityIngress:
		return true
	}
	return false
}

// String is the canonical text of the peer.
func (p PolicyPeer) String() string {
	switch p.Kind {
	case PeerPods:
		if text := p.Pods.String(); text != "all" {
			return text
		}
		return "pods()"
	case PeerNodes:
		return "nodes(" + p.Labels + ")"
	case PeerEntity:
		return string(p.Entity)
	case PeerCIDR:
		text := p.CIDR.String() + exceptText(p.Except)
		if p.MatchesPods {
			text += " or pods there"
		}
		return text
	case PeerCIDRGroups:
		if p.Group != "" {
			return "cidr-group " + p.Group + exceptText(p.Except)
		}
		return "cidr-groups(" + p.Labels + ")" + exceptText(p.Except)
	case PeerServices:
		return p.services()
	}
	return string(p.Kind)
}

func (p PolicyPeer) services() string {
	text := "services(" + p.Labels + ")"
	switch {
	case p.Service.Name != "":
		text = "service " + p.Service.String()
	case p.Service.Namespace != "":
		text += " in " + p.Service.Namespace
	}
	if p.Wide {
		text = "all of " + text
	}
	return text
}

func exceptText(except []netip.Prefix) string {
	if len(except) == 0 {
		return ""
	}
	return " except " + strings.Join(stringsOf(except), ",")
}

// String is as in "allow pods(app=web) at 80/tcp".
func (t PolicyTraffic) String() string {
	text := "allow "
	if t.Deny {
		text = "deny "
	}
	switch {
	case t.AnyPeer:
		text += "any"
	case len(t.Peers) == 0:
		text += "none"
	default:
		text += strings.Join(stringsOf(t.Peers), ", ")
	}
	if len(t.Ports) > 0 {
		text += " at " + strings.Join(stringsOf(t.Ports), ", ")
	}
	return text
}

// String is as in "default deny; allow any at 80/tcp", and "-" if nothing is said.
func (d PolicyDirection) String() string {
	var parts []string
	if d.DefaultDeny {
		parts = append(parts, "default deny")
	}
	return listColumn(append(parts, stringsOf(d.Traffic)...), "; ")
}
