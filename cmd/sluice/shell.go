// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/cilium/hive/shell"
	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
)

func newShellCommand() *cobra.Command {
	var socket *string
	cmd := &cobra.Command{
		Use:   "shell [COMMAND [ARGUMENTS]]",
		Short: "Run the script commands of the running agent",
		Long: `Run one of the script commands of the running agent, or type them at a prompt.
The command help lists them.`,
		Example: `  sluice shell help
  sluice shell db/show endpoints
  sluice shell health`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := findShell(*socket)
			if err != nil {
				return err
			}
			if len(args) > 0 {
				return shell.ShellExchange(shell.Config{ShellSockPath: path}, cmd.OutOrStdout(), "%s", quote(args))
			}
			prompt := shell.ShellCmd(path, "sluice> ", func(w io.Writer) { fmt.Fprint(w, "help lists the commands, exit leaves.\n") })
			prompt.SetArgs(nil)
			return prompt.Execute()
		},
	}
	socket = cmd.Flags().String("socket", "", "socket of the agent's API, beside which is the shell's (default: the usual ones)")
	cmd.Flags().SetInterspersed(false) // flags of the commands are theirs
	return cmd
}

// findShell returns the path of the first shell socket that answers.
func findShell(apiSocket string) (string, error) {
	candidates := agent.Sockets()
	if env := os.Getenv(agent.EnvironmentName("socket")); apiSocket == "" && env != "" {
		apiSocket = env
	}
	if apiSocket != "" {
		candidates = []string{apiSocket}
	}
	var tried attempts
	for _, candidate := range candidates {
		path := agent.ShellSocket(candidate)
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
