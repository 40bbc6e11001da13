// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/api"
)

// errUnhealthy says that the agent answers and is unhealthy. The reasons have been printed.
var errUnhealthy = errors.New("the agent is unhealthy")

func newStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show on one screen how the running agent is doing",
		Long: `Show on one screen how the running agent is doing: health and readiness with the
reasons, tables that are not complete, rows that are pending or failed, policies
by their state, how full the maps are, where programs run, the last removal of
ended connections, and what was dropped since the agent's start.

The exit code is 0 if the agent is healthy, 1 if something is degraded, not ready or
failed, and 3 if no agent answers. An object that is written wrong degrades the
health too, and is named.`,
		Example: `  sluice status
  sluice status -o json
  sluice status >/dev/null || sluice sysdump`,
		Args: noArgs,
	}
	server := serverFlag(cmd.Flags())
	out := coloredOutputFlag(cmd.Flags(), outputText, outputJSON, outputYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		data, err := ask(cmd.Context(), *server, "/status")
		if err != nil {
			return err
		}
		var status api.Status
		if err := json.Unmarshal(data, &status); err != nil {
			return fmt.Errorf("decode the agent's answer: %w", err)
		}
		if out.isData() {
			err = out.printJSON(cmd.OutOrStdout(), data)
		} else {
			_, err = newScreen(&status, out.colored(cmd.OutOrStdout())).WriteTo(cmd.OutOrStdout())
		}
		if err == nil && !status.OK {
			err = errUnhealthy
		}
		return err
	}
	return cmd
}
