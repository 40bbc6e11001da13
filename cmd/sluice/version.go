// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/version"
)

func newVersionCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this binary",
		Example: "  sluice version -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out.String() == outputText {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Get())
				return err
			}
			return out.printValue(cmd.OutOrStdout(), version.Get())
		},
	}
	out = outputFlag(cmd.Flags(), outputText, outputJSON, outputYAML)
	return cmd
}
