// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"

	"github.com/sluice-net/sluice/bpf"
)

// GatewayElection is a list of gateways with the nodes elected for it, as all nodes elect them, or
// that report to have its addresses that move: what the operator knows of an [EgressGroup].
type GatewayElection struct {
	Digest   bpf.Digest      `json:"digest"`   // of the list, see [GroupDigest]
	Policies []string        `json:"policies"` // that use it
	Gateways []GatewayChoice `json:"gateways"`
}

// Equal reports whether two rows say the same.
func (e *GatewayElection) Equal(o *GatewayElection) bool {
	return e.Digest == o.Digest && slices.Equal(e.Policies, o.Policies) &&
		slices.Equal(e.Gateways, o.Gateways)
}

// TableHeader implements [statedb.TableWritable].
func (*GatewayElection) TableHeader() []string { return []string{"Policies", "Gateways"} }

// TableRow implements [statedb.TableWritable].
func (e *GatewayElection) TableRow() []string {
	return []string{listColumn(e.Policies, ", "), listColumn(stringsOf(e.Gateways), " | ")}
}

var (
	gatewayElectionIndex = UniqueIndex("digest", DigestKeys,
		func(e *GatewayElection) bpf.Digest { return e.Digest })

	// GatewayElectionByDigest queries the election for a list of gateways.
	GatewayElectionByDigest = gatewayElectionIndex.Query
)

// NewGatewayElectionTable creates the table of elections.
var NewGatewayElectionTable = Declare("gateway-elections", gatewayElectionIndex)
