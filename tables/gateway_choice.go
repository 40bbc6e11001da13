// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"iter"
	"net/netip"
	"strings"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
)

// GatewayChoice is an item of a list of gateways, with the node elected for it.
type GatewayChoice struct {
	Spec   GatewaySpec `json:"spec"`
	Node   string      `json:"node,omitempty"`   // empty: none
	Addr   netip.Addr  `json:"addr,omitzero"`    // of the node: its underlay address, or its egress IP that moves
	Reason string      `json:"reason,omitempty"` // why none is elected

	// Awaited says that none is, as no node has told the operator that it has the address. Some may
	// have it.
	Awaited bool `json:"awaited,omitempty"`

	// Local says that this node is a candidate: others may have elected it.
	Local bool `json:"local,omitempty"`
}

// NoGateway is the beginning of the text for a choice without an elected node.
const NoGateway = "none: "

func (c GatewayChoice) String() string {
	if c.Node == "" {
		return NoGateway + c.Reason
	}
	return c.Node + " (" + c.Addr.String() + ")"
}

// GroupDigest identifies the group of a list of gateways.
func GroupDigest(gateways []GatewaySpec) bpf.Digest {
	sum := sha256.Sum256([]byte(strings.Join(stringsOf(gateways), " | ")))
	return bpf.Digest(sum[:16])
}

// MaxCandidates is how many nodes of an item of gateways can be elected: the first, by name, that
// are ready. These are probed, and serve what other nodes send to them.
const MaxCandidates = 8

// Avoidance is which nodes are passed over in an election, though they are ready.
type Avoidance int

const (
	AvoidNone     Avoidance = iota
	AvoidLost               // for this node
	AvoidDraining           // and those
)

// against returns what is said against a node, empty if nothing is. isLost says that it is lost.
func (a Avoidance) against(n *Node, isLost bool) string {
	switch {
	case isLost && a >= AvoidLost:
		return "is lost: it does not answer probes"
	case n.Draining && a >= AvoidDraining:
		return "is being drained"
	}
	return ""
}

// Elections elects nodes for items of gateways, in one snapshot of the nodes.
type Elections struct {
	Nodes     func() iter.Seq2[*Node, statedb.Revision]
	LocalNode string
	IsLost    func(node string) bool // for this node

	results map[election]result // by what they depend on
}

type election struct {
	selects string
	avoid   Avoidance
}

type result struct {
	choice  GatewayChoice
	avoided bool
}

// Gateways elects a node for each item of a list. owner returns the node of an item that has one
// already. If nothing is left without the nodes that are being drained, these are elected
// nevertheless, and at last those that are lost: there is no other way.
func (e *Elections) Gateways(
	specs []GatewaySpec, owner func(GatewaySpec) (choice GatewayChoice, owned bool),
) (choices []GatewayChoice) {
	for _, avoid := range []Avoidance{AvoidDraining, AvoidLost, AvoidNone} {
		choices = nil
		isElected, isAvoided := false, false
		for _, spec := range specs {
			choice, avoided := GatewayChoice{Reason: spec.Error}, false
			if owned, found := owner(spec); found {
				choice = owned
			} else if spec.Error == "" {
				choice, avoided = e.node(spec.Nodes, avoid)
			}
			choice.Spec = spec
			choices = append(choices, choice)
			isElected, isAvoided = isElected || choice.Node != "", isAvoided || avoided
		}
		if isElected || !isAvoided {
			break
		}
	}
	return choices
}

// NoOwner is for [Elections.Gateways] where no item has a node already.
func NoOwner(GatewaySpec) (choice GatewayChoice, owned bool) { return choice, false }

// node elects the node of a selector, once.
func (e *Elections) node(selects string, avoid Avoidance) (choice GatewayChoice, avoided bool) {
	r, known := e.results[election{selects, avoid}]
	if known {
		return r.choice, r.avoided
	}
	r.choice, r.avoided = e.elect(selects, avoid)
	if e.results == nil {
		e.results = map[election]result{}
	}
	e.results[election{selects, avoid}] = r
	return r.choice, r.avoided
}

// elect returns the node that a selector elects, among nodes in order of name: the first that is
// ready, has an address, and that nothing is said against. The choice says whether this node is one
// of the candidates; avoided, whether a node was passed over for what is said against it.
func (e *Elections) elect(selects string, avoid Avoidance) (choice GatewayChoice, avoided bool) {
	selector, err := labels.Parse(selects)
	if err != nil {
		choice.Reason = err.Error()
		return choice, false
	}
	var refused []string
	candidates := 0
	for n := range e.Nodes() {
		if candidates == MaxCandidates {
			break
		}
		if !selector.Matches(n.Labels) {
			continue
		}
		choice.Local = choice.Local || n.Name == e.LocalNode
		addr := n.UnderlayIP()
		if n.Ready && addr.IsValid() {
			candidates++
		}
		against := avoid.against(n, e.IsLost(n.Name))
		switch {
		case choice.Node != "":
		case !n.Ready:
			refused = append(refused, n.Name+" is not ready")
		case !addr.IsValid():
			refused = append(refused, n.Name+" has no internal address")
		case against != "":
			avoided = true
			refused = append(refused, n.Name+" "+against)
		default:
			choice.Node, choice.Addr = n.Name, addr
		}
	}
	if choice.Node == "" {
		choice.Reason = "no node matches"
		if len(refused) > 0 {
			choice.Reason = strings.Join(refused, ", ")
		}
	}
	return choice, avoided
}
