// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/sluice-net/sluice/tables"
)

// nodeReport is what the agent of some node has written, maybe of another version.
type nodeReport struct {
	object
	Status struct {
		AgentVersion string           `json:"agentVersion"`
		Policies     []reportedPolicy `json:"policies"`
		Omitted      int              `json:"omitted"`
		Summary      struct {
			Egress  string `json:"egress"`
			Failed  int    `json:"failed"`
			Leaving int    `json:"leaving"`
		} `json:"summary"`
		Drain        string          `json:"drain"`
		EgressVoters int64           `json:"egressVoters"`
		EgressPorts  []reportedPorts `json:"egressPorts"`
	} `json:"status"`
}

type reportedPolicy struct {
	Policy       string   `json:"policy"`
	UID          string   `json:"uid"`
	Generation   int64    `json:"generation"`
	Wanted       int      `json:"wanted"`
	Programmed   int      `json:"programmed"`
	Failed       int      `json:"failed"`
	Error        string   `json:"error"`
	LosesTo      []string `json:"losesTo"`
	EgressIPs    []string `json:"egressIPs"`
	GatewayError string   `json:"gatewayError"`
}

// NodeReportKind returns the kind in which agents report the status of policies. The operator
// reads it.
func NodeReportKind() *Kind {
	return &Kind{
		Group: "sluice.io", Version: "v1alpha1", Kind: "NodeReport", Resource: "nodereports",
		decoder: decoderFor(nodeReports),
		open: func(t *Tables) *Store {
			return storeOf(t.NodeReports, byName(tables.NodeReportByNode))
		},
	}
}

func nodeReports(o *nodeReport, name tables.Name, errs *fieldErrors) []*tables.NodeReport {
	r := &tables.NodeReport{Node: name.Name, ReportContents: tables.ReportContents{
		AgentVersion: o.Status.AgentVersion, Omitted: o.Status.Omitted, Summary: o.Status.Summary,
		Drain: o.Status.Drain,
	}}
	if g := o.Status.EgressVoters; g < 0 || g > math.MaxUint32 {
		errs.add("status.egressVoters", strconv.FormatInt(g, 10)+" is no generation")
	} else {
		r.EgressVoters = uint32(g)
	}
	for i, p := range o.Status.Policies {
		field := fmt.Sprintf("status.policies[%d]", i)
		id, err := tables.ParsePolicyID(p.Policy)
		if err != nil {
			errs.add(field+".policy", err.Error())
			continue
		}
		row := tables.ReportedPolicy{
			Policy: id, UID: internString(p.UID), Generation: p.Generation, Wanted: p.Wanted,
			Programmed: p.Programmed, Failed: p.Failed,
			Error: p.Error, LosesTo: p.LosesTo, GatewayError: p.GatewayError,
		}
		row.Policy.Name.Name = internString(id.Name.Name)
		for j, ip := range p.EgressIPs {
			row.EgressIPs = errs.addr(row.EgressIPs, fmt.Sprintf("%s.egressIPs[%d]", field, j), ip)
		}
		row.EgressIPs = distinct(row.EgressIPs)
		r.Policies = append(r.Policies, row)
	}
	slices.SortFunc(
		r.Policies, func(a, b tables.ReportedPolicy) int { return a.Policy.Compare(b.Policy) },
	)
	r.EgressPorts = errs.poolPorts("status.egressPorts", o.Status.EgressPorts)
	r.Errors = *errs
	return one(r)
}
