// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"os"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/cmd/api"
	statuswriter "github.com/sluice-net/sluice/reconcilers/objectstatus"
	"github.com/sluice-net/sluice/reconcilers/poolstatus"
	voterswriter "github.com/sluice-net/sluice/reconcilers/voters"
	"github.com/sluice-net/sluice/sources"
	"github.com/sluice-net/sluice/sources/election"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/objectstatus"
	"github.com/sluice-net/sluice/tables/pools"
	"github.com/sluice-net/sluice/tables/voters"
)

// NewOperator returns a hive of the given modules and of what they all need. [Operator] is the
// operator; tests put something else in place of what touches the outside.
func NewOperator(cells ...cell.Cell) *hive.Hive {
	return newHive(append([]cell.Cell{infrastructure, operatorConfigCell}, cells...)...)
}

// Operator has the modules of the operator, in the order in which data flows: what one place in
// the cluster decides. It has no part in the way of packets: the agents go on without it.
var Operator = cell.Group(
	// Probes are answered from the beginning.
	api.ListenCell,

	// Objects of the cluster, and which operator leads: nodes, egress-policies,
	// network-policies, egress-ip-pools, egress-voters, node-reports, leadership, clock.
	sources.OperatorCell,

	OperatorDataflow,
	apiWritersCell,

	// What of all that is a metric of its own.
	cell.Invoke(registerStateMetrics, registerPoolMetrics),

	// The tables, health and metrics over HTTP.
	api.Cell,
)

// OperatorDataflow has the controllers: each derives rows while this operator leads, and none
// otherwise, and a reconciler writes them to the API server.
var OperatorDataflow = cell.Group(
	cell.Provide(newDeriveMetrics),

	// The status of policies: gateway-elections, object-status.
	objectstatus.Cell,
	statuswriter.Cell,

	// What pools of egress addresses give to nodes and policies: egress-ip-pool-status.
	pools.Cell,
	poolstatus.Cell,

	// The nodes that vote on which node has such an address: egress-voters-wanted.
	voters.Cell,
	voterswriter.Cell,
)

// operatorConfigCell has the flags that concern the whole operator.
var operatorConfigCell = cell.Group(
	cell.Config(OperatorConfig{}),
	cell.Provide(
		OperatorConfig.identity,
		// What /status calls the node.
		func(i election.Identity) tables.LocalNode { return tables.LocalNode{Name: string(i)} },
	),
)

// OperatorConfig has the flags that concern the whole operator.
type OperatorConfig struct{ Identity string }

// Flags implements [cell.Flagger].
func (c OperatorConfig) Flags(flags *pflag.FlagSet) {
	flags.String("identity", c.Identity,
		"name of this operator, which no other one has, in the Lease "+
			"(default: $POD_NAME, or else of the host and the process)")
}

func (c OperatorConfig) identity() (election.Identity, error) {
	if name := cmp.Or(c.Identity, os.Getenv("POD_NAME")); name != "" {
		return election.Identity(name), nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find a name for this operator: %w: --identity sets it", err)
	}
	return election.Identity(fmt.Sprintf("%s-%d", host, os.Getpid())), nil
}
