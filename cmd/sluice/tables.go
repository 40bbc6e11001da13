// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/api"
)

func newTablesCommand() *cobra.Command {
	var server *string
	var out output
	cmd := &cobra.Command{
		Use:   "tables",
		Short: "List the tables of the running agent",
		Example: `  sluice tables
  sluice tables -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := connect(cmd.Context(), *server)
			if err != nil {
				return err
			}
			defer c.close()
			var list json.RawMessage
			if err := c.getJSON(cmd.Context(), "/tables", &list); err != nil {
				return err
			}
			if out.isData() {
				return out.printJSON(cmd.OutOrStdout(), list)
			}
			return printTables(cmd.OutOrStdout(), out, list)
		},
	}
	server = serverFlag(cmd.Flags())
	out = tableOutputFlag(cmd.Flags())
	return cmd
}

func printTables(w io.Writer, out output, data []byte) error {
	var list []api.Table
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	rows := [][]string{{"Name", "Rows", "Status", "Revision", "Indexes"}}
	for _, t := range list {
		status := "initialized"
		if !t.Initialized {
			status = "waits for " + strings.Join(t.Pending, ", ")
		}
		rows = append(rows, []string{
			t.Name, strconv.Itoa(t.Rows), status, strconv.FormatUint(t.Revision, 10), strings.Join(t.Indexes, ", "),
		})
	}
	return out.printRows(w, rows)
}
