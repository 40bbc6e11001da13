// SPDX-License-Identifier: Apache-2.0

// Sluice is a Kubernetes node agent for egress gateways and network policy, and
// the tool to look into it. A file is a subcommand.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
)

// Exit codes.
const (
	exitOK      = 0
	exitError   = 1
	exitUsage   = 2 // the command line or the environment is wrong
	exitNoAgent = 3 // no agent answers, or one that was followed went away
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run runs a command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root, began := newRoot(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "sluice: %v\n", err)
	var usage agent.UsageError
	switch {
	case errors.As(err, &usage) || !*began:
		return exitUsage
	case errors.Is(err, errNoAgent):
		return exitNoAgent
	default:
		return exitError
	}
}

// newRoot returns the command sluice. It sets began when a command line turned
// out to be valid and its command begins.
func newRoot(stdout, stderr io.Writer) (root *cobra.Command, began *bool) {
	began = new(bool)
	root = &cobra.Command{
		Use:   "sluice",
		Short: "A Kubernetes node agent for egress gateways and network policy",
		Long: `Sluice is a Kubernetes node agent for egress gateways and network policy, and
the tool to look into it: everything that it reads, decides and wants of the
kernel is a row of a table.

Exit codes are 0; 1 for an error, and for sluice status and explain if something
is not as it should be; 2 for a wrong command line or environment; and 3 if no
agent answers, or one that was followed went away.`,
		Example: `  sluice agent                   run the agent
  sluice operator                run what the cluster needs once: the status of policies
  sluice status                  show how the running agent is doing
  sluice tables                  list its tables
  sluice get endpoints           show a table
  sluice get health -w           follow a table
  sluice monitor                 follow drops and new flows
  sluice explain policy A B 80   say whether A may reach B, and why
  sluice explain egress A B      say by which gateway A reaches B
  sluice wait policy shop/web    wait until a network policy is in force
  sluice gateway drain node-2    have new connections leave by other gateways
  sluice ct list                 list tracked connections
  sluice sysdump                 collect what a bug report needs`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRun:  func(*cobra.Command, []string) { *began = true },
		DisableAutoGenTag: true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return agent.FlagError(cmd.CommandPath(), cmd.Flags(), err)
	})
	root.AddCommand(
		newAgentCommand(), newOperatorCommand(), newStatusCommand(), newTablesCommand(), newGetCommand(),
		newMonitorCommand(), newExplainCommand(), newRulesCommand(), newWaitCommand(),
		newCTCommand(), newNATCommand(), newLedgerCommand(), newGatewayCommand(),
		newDemoCommand(), newShellCommand(), newSysdumpCommand(), newCleanupCommand(),
		newVersionCommand(),
	)
	addCompletion(root)
	return root, began
}

// untilInterrupted returns a context that ends with SIGINT or SIGTERM.
func untilInterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}
