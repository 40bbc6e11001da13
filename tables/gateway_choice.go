// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"net/netip"
	"strings"

	"github.com/sluice-net/sluice/bpf"
)

// GatewayChoice is an item of a list of gateways, with the node elected for it.
type GatewayChoice struct {
	Spec   GatewaySpec `json:"spec"`
	Node   string      `json:"node,omitempty"`   // empty: none
	Addr   netip.Addr  `json:"addr,omitzero"`    // underlay address of the node
	Reason string      `json:"reason,omitempty"` // why none is elected

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
