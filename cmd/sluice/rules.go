// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/api"
)

func newRulesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rules",
		Short: "Show how many packets the rules of network policies have decided",
		Long: `Show how many packets and bytes the rules of network policies that are in force on
this node have decided. Rules that decide together are counted together; the
replies in a connection are not counted. Counts begin when a rule first decides,
go on over a restart of the agent, and end with the rule.`,
		Example: `  sluice rules
  sluice rules -o json`,
		Args: noArgs,
	}
	server := serverFlag(cmd.Flags())
	out := tableOutputFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		data, err := ask(cmd.Context(), *server, "/rules")
		if err != nil {
			return err
		}
		if out.isData() {
			return out.printJSON(cmd.OutOrStdout(), data)
		}
		return printRules(cmd.OutOrStdout(), cmd.ErrOrStderr(), out, data)
	}
	return cmd
}

func printRules(w, stderr io.Writer, out output, data []byte) error {
	var report api.RulesReport
	if err := json.Unmarshal(data, &report); err != nil {
		return fmt.Errorf("decode the agent's answer: %w", err)
	}
	if !report.Counted {
		fmt.Fprintln(stderr, "sluice: no programs are loaded: nothing is counted")
	}
	rows := [][]string{{"Packets", "Bytes", "Rules"}}
	for _, r := range report.Rules {
		rules := strings.Join(r.Rules, ", ")
		if rules == "" {
			rules = "no more in force (cookie " + strconv.FormatUint(uint64(r.Cookie), 10) + ")"
		}
		rows = append(rows, []string{strconv.FormatUint(r.Packets, 10), strconv.FormatUint(r.Bytes, 10), rules})
	}
	return out.printRows(w, rows)
}
