// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// NodeReport is what a node has reported, in the NodeReport of its name: see table node-report of
// the agent there.
type NodeReport struct {
	Node   string       `json:"node"`
	Errors []FieldError `json:"errors,omitempty"`

	ReportContents
}

// ReportContents is the status of a NodeReport.
type ReportContents struct {
	AgentVersion string           `json:"agentVersion"`
	Policies     []ReportedPolicy `json:"policies,omitempty"` // by their IDs
	Omitted      int              `json:"omitted,omitempty"`  // policies for which there was no room
	Summary      ReportSummary    `json:"summary"`

	// Drain is the value of [DrainAnnotation] that the node knows: the policies with egress addresses
	// are those that have no other gateway, or leave by it until another one has theirs. The value
	// tells one draining from the next: a report may be of before the node was elected again.
	Drain string `json:"drain,omitempty"`

	// EgressVoters is the generation of table egress-voters that the node has taken over: no vote
	// that it has given in a former generation counts any more. 0 if there was none.
	EgressVoters uint32      `json:"egressVoters,omitempty"`
	EgressPorts  []PoolPorts `json:"egressPorts,omitempty"` // by the names of pools
}

// ReportSummary is what kubectl shows of a NodeReport.
type ReportSummary struct {
	Egress  string `json:"egress"`  // egress policies applied / all
	Failed  int    `json:"failed"`  // policies of which the kernel refused something
	Leaving int    `json:"leaving"` // policies with egress addresses, also omitted ones
}

// Policy returns what the node reports about a policy, nil if nothing.
func (c *ReportContents) Policy(id PolicyID) *ReportedPolicy {
	i, found := slices.BinarySearchFunc(
		c.Policies, id, func(p ReportedPolicy, id PolicyID) int { return p.Policy.Compare(id) },
	)
	if !found {
		return nil
	}
	return &c.Policies[i]
}

// EgressIPs returns what traffic of policies leaves the node with, once each, in order.
func (c *ReportContents) EgressIPs() (addrs []netip.Addr) {
	for i := range c.Policies {
		addrs = append(addrs, c.Policies[i].EgressIPs...)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// TableHeader implements [statedb.TableWritable].
func (*NodeReport) TableHeader() []string {
	return []string{"Node", "AgentVersion", "Egress", "Failed", "Problems", "Omitted", "EgressVoters",
		"Ports", "Errors",
	}
}

// TableRow implements [statedb.TableWritable].
func (r *NodeReport) TableRow() []string {
	var problems []string
	for i := range r.Policies {
		if p := &r.Policies[i]; !p.Applied() {
			problems = append(problems, fmt.Sprintf("%s %d/%d", p.Policy, p.Programmed, p.Wanted))
		}
	}
	return []string{
		r.Node, orDash(r.AgentVersion), orDash(r.Summary.Egress), strconv.Itoa(r.Summary.Failed),
		listColumn(problems, ", "), strconv.Itoa(r.Omitted),
		strconv.FormatUint(uint64(r.EgressVoters), 10), listColumn(stringsOf(r.EgressPorts), ", "),
		errorColumn(r.Errors),
	}
}

var (
	nodeReportNodeIndex = UniqueIndex("node", StringKeys,
		func(r *NodeReport) string { return r.Node })

	// NodeReportByNode queries the report of a node.
	NodeReportByNode = nodeReportNodeIndex.Query

	nodeReportNetworkIndex = IndexEach("network-policy", PolicyKeys,
		func(r *NodeReport) (ids []PolicyID) {
			for i := range r.Policies {
				if id := r.Policies[i].Policy; id.Kind != PolicyEgress {
					ids = append(ids, id)
				}
			}
			return ids
		})

	// NodeReportsByNetworkPolicy queries the reports that name a network policy, which few do.
	NodeReportsByNetworkPolicy = nodeReportNetworkIndex.Query

	nodeReportEgressIPIndex = IndexEach("egress-ip", AddrKeys,
		func(r *NodeReport) []netip.Addr { return r.EgressIPs() })

	// NodeReportsByEgressIP queries the reports of nodes that traffic leaves with an address.
	NodeReportsByEgressIP = nodeReportEgressIPIndex.Query
)

// NewNodeReportTable creates the table of the reports of nodes.
var NewNodeReportTable = Declare(
	"node-reports", nodeReportNodeIndex, nodeReportNetworkIndex, nodeReportEgressIPIndex,
)
