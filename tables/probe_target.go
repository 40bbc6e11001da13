// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"
)

// ProbeTarget is a node that this node probes.
type ProbeTarget struct {
	Node string     `json:"node"`
	Addr netip.Addr `json:"addr"` // by which other nodes reach it

	// Witness says that it is no gateway: its answers show that the network of this node works.
	Witness bool `json:"witness"`

	// Voted says that this node is a voter and votes for it: it is probed all the time.
	Voted bool `json:"voted,omitempty"`
}

// Equal reports whether two rows are the same.
func (p *ProbeTarget) Equal(o *ProbeTarget) bool { return *p == *o }

// TableHeader implements [statedb.TableWritable].
func (*ProbeTarget) TableHeader() []string {
	return []string{"Node", "Address", "Witness", "Voted"}
}

// TableRow implements [statedb.TableWritable].
func (p *ProbeTarget) TableRow() []string {
	return []string{
		p.Node, p.Addr.String(), strconv.FormatBool(p.Witness), strconv.FormatBool(p.Voted),
	}
}

var (
	probeTargetNodeIndex = UniqueIndex("node", StringKeys,
		func(p *ProbeTarget) string { return p.Node })

	// ProbeTargetByNode queries what is probed of a node.
	ProbeTargetByNode = probeTargetNodeIndex.Query
)

// NewProbeTargetTable creates the table of the nodes that this node probes.
var NewProbeTargetTable = Declare("probe-targets", probeTargetNodeIndex)
