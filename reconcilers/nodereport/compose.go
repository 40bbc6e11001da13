// SPDX-License-Identifier: Apache-2.0

package nodereport

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-net/sluice/tables"
)

// What keeps a report below 1 MiB, whatever the policies.
const (
	maxEgress  = 400 // policies
	maxNetwork = 100 // policies, of those that are not in force
	maxText    = 128 // bytes of an error
	maxListed  = 4   // destinations, or addresses, of a policy
	maxPools   = 200 // of which ports are wanted
)

// compose returns what rows of the tables node-report and egress-port-demand come to. If there is
// not room for all, what is wrong goes first.
func compose(
	version string, rows iter.Seq2[*tables.PolicyReport, statedb.Revision],
	ports iter.Seq2[*tables.EgressPortDemand, statedb.Revision],
) *tables.ReportContents {
	c := &tables.ReportContents{AgentVersion: version}
	var egress, network []*tables.ReportedPolicy
	applied := 0
	for row := range rows {
		p := &row.ReportedPolicy
		if p.Failed > 0 {
			c.Summary.Failed++
		}
		if p.Policy.Kind != tables.PolicyEgress {
			network = append(network, p)
			continue
		}
		egress = append(egress, p)
		if len(p.EgressIPs) > 0 {
			c.Summary.Leaving++
		}
		if p.Applied() {
			applied++
		}
	}
	c.Summary.Egress = fmt.Sprintf("%d/%d", applied, len(egress))
	for _, part := range []struct {
		policies []*tables.ReportedPolicy
		most     int
	}{{egress, maxEgress}, {network, maxNetwork}} {
		inTurn(part.policies)
		n := min(len(part.policies), part.most)
		for _, p := range part.policies[:n] {
			c.Policies = append(c.Policies, shortened(*p))
		}
		c.Omitted += len(part.policies) - n
	}
	slices.SortFunc(
		c.Policies, func(a, b tables.ReportedPolicy) int { return a.Policy.Compare(b.Policy) },
	)
	for row := range ports {
		if len(c.EgressPorts) < maxPools {
			c.EgressPorts = append(c.EgressPorts, row.PoolPorts)
		}
	}
	return c
}

// inTurn sorts policies by urgency, those that are as urgent by namespaces in turn: many of one
// leave room for those of others.
func inTurn(policies []*tables.ReportedPolicy) {
	type share struct {
		namespace string
		urgency   int
	}
	turns, counts := map[*tables.ReportedPolicy]int{}, map[share]int{}
	for _, p := range policies {
		of := share{p.Policy.Namespace, urgency(p)}
		turns[p] = counts[of]
		counts[of]++
	}
	slices.SortStableFunc(policies, func(a, b *tables.ReportedPolicy) int {
		return cmp.Or(cmp.Compare(urgency(b), urgency(a)), cmp.Compare(turns[a], turns[b]))
	})
}

func urgency(p *tables.ReportedPolicy) int {
	switch {
	case p.Failed > 0:
		return 2
	case !p.Applied() || p.GatewayError != "" || len(p.LosesTo) > 0 || len(p.EgressIPs) > 0:
		return 1
	}
	return 0
}

func shortened(p tables.ReportedPolicy) tables.ReportedPolicy {
	p.Error, p.GatewayError = cut(p.Error), cut(p.GatewayError)
	p.EgressIPs = p.EgressIPs[:min(len(p.EgressIPs), maxListed)]
	p.LosesTo = slices.Clone(p.LosesTo[:min(len(p.LosesTo), maxListed)])
	for i, text := range p.LosesTo {
		p.LosesTo[i] = cut(text)
	}
	return p
}

// cut cuts a text that is too long, not within a character.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-3], "") + "..."
}

// manifest is the object in which a node tells: it goes when the Node does.
func manifest(node *tables.Node, c *tables.ReportContents) []byte {
	object := struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ObjectMeta      `json:"metadata"`
		Status          *tables.ReportContents `json:"status"`
	}{
		TypeMeta: metav1.TypeMeta{APIVersion: Resource.GroupVersion().String(), Kind: "NodeReport"},
		Metadata: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Node", Name: node.Name, UID: types.UID(node.UID),
		}}},
		Status: c,
	}
	data, err := json.Marshal(object)
	if err != nil {
		panic(err) // of nothing but texts and numbers
	}
	return data
}
