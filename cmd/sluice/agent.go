// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
)

// moreCells are modules that tests add to the agent.
var moreCells []cell.Cell

func newAgentCommand() *cobra.Command {
	var h *hive.Hive
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent on this node",
		Long: `Run the agent on this node, until it is interrupted.

Each flag can also be set by an environment variable: --node-name by
SLUICE_NODE_NAME.`,
		Example: `  # Read manifests, and write maps to the kernel if privileged
  sluice agent --source=files --manifests=testdata/demo --node-name=node-1

  # Outside of a cluster, but reading from it, without touching the kernel
  sluice agent --source=kubernetes --kubeconfig=$HOME/.kube/config --bpf=memory`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return agent.Run(h, cmd.Flags(), cmd.ErrOrStderr()) },
	}
	h = agent.New(append(moreCells, agent.Cell, agent.Banner(stderrOf{cmd}))...)
	h.RegisterFlags(cmd.Flags())
	cmd.Flags().MarkHidden("shell-sock-path") // exists; it follows --socket
	return cmd
}

// stderrOf writes to where a command has its errors written to when it runs.
type stderrOf struct{ cmd *cobra.Command }

func (w stderrOf) Write(b []byte) (int, error) { return w.cmd.ErrOrStderr().Write(b) }
