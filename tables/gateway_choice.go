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
	Addr   netip.Addr  `json:"addr,omitzero"`    // underlay address of the node
	Reason string      `json:"reason,omitempty"` // why none is elected
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

// ElectNode returns the node that a selector elects, among nodes in order of name, and whether this
// node is a candidate.
func ElectNode(
	nodes iter.Seq2[*Node, statedb.Revision], selects, localNode string,
) (choice GatewayChoice, local bool) {
	selector, err := labels.Parse(selects)
	if err != nil {
		choice.Reason = err.Error()
		return choice, false
	}
	var refused []string
	for n := range nodes {
		if !selector.Matches(n.Labels) {
			continue
		}
		local = local || n.Name == localNode
		switch addr := n.UnderlayIP(); {
		case choice.Node != "":
		case !n.Ready:
			refused = append(refused, n.Name+" is not ready")
		case !addr.IsValid():
			refused = append(refused, n.Name+" has no internal address")
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
	return choice, local
}
