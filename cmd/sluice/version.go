// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
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
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out.String() == outputText {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Get())
				return err
			}
			data, err := json.Marshal(version.Get())
			if err != nil {
				return err
			}
			return out.printJSON(cmd.OutOrStdout(), data)
		},
	}
	out = outputFlag(cmd.Flags(), outputText, outputJSON, outputYAML)
	return cmd
}
