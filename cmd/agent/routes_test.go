// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/cilium/hive/script"

	"github.com/sluice-net/sluice/tables"
)

// routes is the command that prints which egress policies select which pods, without
// the numbers that lead from the ones to the others.
func (c *cluster) routes() script.Cmd {
	return script.Command(
		script.CmdUsage{
			Summary: "Print the addresses that egress policies select, with the policies",
		},
		func(*script.State, ...string) (script.WaitFunc, error) {
			return func(*script.State) (string, string, error) { return c.chosenPods(), "", nil }, nil
		})
}

func (c *cluster) chosenPods() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "Address\tPod\tPolicies")
	txn := c.oracle.DB.ReadTxn()
	for pod := range c.desire.Pods.All(txn) {
		route, _, chosen := c.desire.Routes.Get(txn, tables.RouteBySubject(pod.Subject))
		if !chosen {
			continue
		}
		number := tables.EgressRulesetByNumber(route.EgressRuleset)
		if rules, _, found := c.desire.EgressRulesets.Get(txn, number); found {
			fmt.Fprintf(
				w, "%s\t%s\t%s\n", pod.Addr, pod.Endpoint, strings.Join(rules.Policies, ", "),
			)
		}
	}
	w.Flush()
	return text.String()
}
