// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ReportedPolicy is what a node reports to the others about a policy: about each egress policy, and
// about those network policies that are not applied there.
type ReportedPolicy struct {
	Policy     PolicyID `json:"policy"`
	UID        string   `json:"uid,omitempty"`
	Generation int64    `json:"generation,omitempty"`

	Wanted     int    `json:"wanted,omitempty"`     // entries that the policy decides on the node
	Programmed int    `json:"programmed,omitempty"` // of these, in the kernel
	Failed     int    `json:"failed,omitempty"`     // refused by the kernel
	Error      string `json:"error,omitempty"`      // why it is not applied

	LosesTo []string `json:"losesTo,omitempty"` // destinations that older policies have

	// What its traffic leaves the node with, if the node is one of its gateways, and
	// why it does not if it cannot.
	EgressIPs    []netip.Addr `json:"egressIPs,omitempty"`
	GatewayError string       `json:"gatewayError,omitempty"`
}

// Applied reports whether the node's kernel has all that there is of the policy.
func (p *ReportedPolicy) Applied() bool {
	return p.Failed == 0 && p.Error == "" && p.Programmed == p.Wanted
}

// Equal reports whether two nodes, or one at two times, say the same.
func (p *ReportedPolicy) Equal(o *ReportedPolicy) bool {
	return p.Policy == o.Policy && p.UID == o.UID && p.Generation == o.Generation &&
		p.Wanted == o.Wanted &&
		p.Programmed == o.Programmed && p.Failed == o.Failed && p.Error == o.Error &&
		slices.Equal(p.LosesTo, o.LosesTo) &&
		slices.Equal(p.EgressIPs, o.EgressIPs) && p.GatewayError == o.GatewayError
}

// PolicyReport is what this node reports about a policy. Its status is that of the object
// NodeReport with the report.
type PolicyReport struct {
	ReportedPolicy `yaml:",inline"`
	Reconciled     `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (r *PolicyReport) Equal(o *PolicyReport) bool {
	return r.ReportedPolicy.Equal(&o.ReportedPolicy)
}

// TableHeader implements [statedb.TableWritable].
func (*PolicyReport) TableHeader() []string {
	return []string{
		"Policy", "Programmed", "Failed", "Problem", "EgressIPs", "LosesTo", "Status", "Error",
	}
}

// TableRow implements [statedb.TableWritable].
func (r *PolicyReport) TableRow() []string {
	var problems []string
	for _, text := range []string{r.Error, r.GatewayError} {
		if text != "" {
			problems = append(problems, text)
		}
	}
	return []string{
		r.Policy.String(), fmt.Sprintf("%d/%d", r.Programmed, r.Wanted), fmt.Sprint(r.Failed),
		orDash(strings.Join(problems, "; ")),
		listColumn(stringsOf(r.EgressIPs), ", "), listColumn(r.LosesTo, "; "), r.Status.Kind.String(),
		orDash(r.Status.GetError()),
	}
}

var (
	policyReportIndex = UniqueIndex("policy", PolicyKeys,
		func(r *PolicyReport) PolicyID { return r.Policy })

	// PolicyReportByPolicy queries what this node reports about a policy.
	PolicyReportByPolicy = policyReportIndex.Query
)

// NewPolicyReportTable creates the table of what this node reports.
var NewPolicyReportTable = Declare("node-report", policyReportIndex)
