// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"crypto/sha256"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-net/sluice/bpf"
)

// EgressGroup is a group of gateways among which the sources of one or more
// policies are spread. Policies with the same list of gateways share it.
type EgressGroup struct {
	Digest bpf.Digest `json:"digest"` // of the canonical text of the list, see [GroupDigest]
	Number uint32     `json:"number"`

	Policies []string        `json:"policies"` // that use it
	Gateways []GatewayChoice `json:"gateways"`

	// Local says that this node may be elected: it matches some item of the list.
	Local bool `json:"local"`
}

// GatewayChoice is an item of a list of gateways, with the node elected for it.
type GatewayChoice struct {
	Spec   GatewaySpec `json:"spec"`
	Node   string      `json:"node,omitempty"`   // empty: none
	Addr   netip.Addr  `json:"addr,omitzero"`    // underlay address of the node
	Reason string      `json:"reason,omitempty"` // why none is elected
}

// NoGateway begins what a choice that elected nobody is shown as.
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

// Equal reports whether two rows say the same.
func (g *EgressGroup) Equal(o *EgressGroup) bool {
	return g.Digest == o.Digest && g.Number == o.Number && g.Local == o.Local &&
		slices.Equal(g.Policies, o.Policies) && slices.Equal(g.Gateways, o.Gateways)
}

// TableHeader implements [statedb.TableWritable].
func (*EgressGroup) TableHeader() []string {
	return []string{"Number", "Policies", "Gateways", "Local", "Specs"}
}

// TableRow implements [statedb.TableWritable].
func (g *EgressGroup) TableRow() []string {
	specs := make([]string, len(g.Gateways))
	for i, c := range g.Gateways {
		specs[i] = c.Spec.String()
	}
	return []string{
		strconv.FormatUint(uint64(g.Number), 10), listColumn(g.Policies, ", "), listColumn(stringsOf(g.Gateways), " | "),
		strconv.FormatBool(g.Local), listColumn(specs, " | "),
	}
}

var (
	egressGroupDigestIndex = UniqueIndex("digest", DigestKeys,
		func(g *EgressGroup) bpf.Digest { return g.Digest })

	egressGroupNumberIndex = UniqueIndex("number", Uint32Keys,
		func(g *EgressGroup) uint32 { return g.Number })

	// EgressGroupByDigest queries the group of a list of gateways.
	EgressGroupByDigest = egressGroupDigestIndex.Query

	// EgressGroupByNumber queries a group by the number that the kernel knows.
	EgressGroupByNumber = egressGroupNumberIndex.Query
)

// NewEgressGroupTable creates the table of gateway groups.
var NewEgressGroupTable = Declare("egress-groups", egressGroupDigestIndex, egressGroupNumberIndex)
