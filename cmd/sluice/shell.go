// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/cilium/hive/shell"
	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
)

func newShellCommand() *cobra.Command {
	var server *string
	cmd := &cobra.Command{
		Use:   "shell [COMMAND [ARGUMENTS]]",
		Short: "Run the script commands of the running agent",
		Long: `Run one of the script commands of the running agent, or type them at a prompt.
The command help lists them. It is for who may use the agent's socket.`,
		Example: `  sluice shell help
  sluice shell db/show endpoints
  sluice shell health`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := findShell(*server)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				return shell.ShellExchange(shell.Config{ShellSockPath: path}, cmd.OutOrStdout(), "%s", quote(args))
			}
			prompt := shell.ShellCmd(path, "sluice> ", func(w io.Writer) { fmt.Fprint(w, "help lists the commands, exit leaves.\n") })
			prompt.SetArgs([]string{}) // nil would be those of this process
			return prompt.Execute()
		},
	}
	server = serverFlag(cmd.Flags())
	cmd.Flags().SetInterspersed(false) // flags of the commands are theirs
	return cmd
}

// findShell returns the path of the first shell socket that answers. It is beside
// that of the API.
func findShell(server string) (string, error) {
	var tried attempts
	for _, s := range servers(server) {
		c, err := newClient(s)
		if err != nil {
			return "", agent.UsageErrorf("--server %q: %w", s, err)
		}
		if c.socket == "" {
			if chosenServer(server) != "" {
				return "", agent.UsageErrorf("--server %q: the shell is on the agent's socket only: want unix:///path", s)
			}
			continue
		}
		path := agent.ShellSocket(c.socket)
		conn, err := net.DialTimeout("unix", path, dialTimeout)
		if err == nil {
			conn.Close()
			return path, nil
		}
		tried.add(unixScheme+path, cause(err))
	}
	return "", tried.err()
}

// quote joins arguments to a line that the agent's engine splits into the same.
func quote(args []string) string {
	quoted := make([]string, len(args))
	for i, arg := range args {
		if arg == "" || strings.ContainsAny(arg, " \t'#$") {
			arg = "'" + strings.ReplaceAll(arg, "'", "''") + "'"
		}
		quoted[i] = arg
	}
	return strings.Join(quoted, " ")
}
