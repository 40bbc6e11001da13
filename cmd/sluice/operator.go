// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/cilium/hive"
	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
)

func newOperatorCommand() *cobra.Command {
	var h *hive.Hive
	cmd := &cobra.Command{
		Use:   "operator",
		Short: "Run the operator of the cluster",
		Long: `Run the operator of the cluster, until it is interrupted. It does what one place
in the cluster decides, as to write the status of policies. Of several, one leads
and the others wait. Agents go on without it.

Each flag can also be set by an environment variable: --log-level by
SLUICE_LOG_LEVEL.`,
		Example: `  # Outside of a cluster
  sluice operator --kubeconfig=$HOME/.kube/config`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return agent.Run(h, cmd.Flags(), cmd.ErrOrStderr())
		},
	}
	h = agent.NewOperator(append(moreCells, agent.Operator)...)
	h.RegisterFlags(cmd.Flags())
	return cmd
}
