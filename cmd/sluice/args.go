// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
)

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return agent.UsageErrorf("want no argument, got %q: see %s --help", args[0], cmd.CommandPath())
}

// args wants one argument for each name.
func args(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return agent.UsageErrorf("want %s, got %d of %d arguments: see %s --help", strings.Join(names, " "), len(args), len(names), cmd.CommandPath())
	}
}

// atMostOneArg wants one argument, or none.
func atMostOneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= 1 {
			return nil
		}
		return agent.UsageErrorf("want at most one %s, got %d arguments: see %s --help", name, len(args), cmd.CommandPath())
	}
}
