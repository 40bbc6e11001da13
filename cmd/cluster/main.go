// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/cluster/kubernetes"
)

func main() {
	kubernetes.Init()
	var exit *exec.ExitError
	switch err := command().Execute(); {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var options kubernetes.Options
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "A Kubernetes cluster on this machine, to look around in",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&options.Bin, "bin", "bin",
		"directory of the binaries that make cluster-binaries builds")

	up := &cobra.Command{
		Use:   "up",
		Short: "Run a cluster until interrupted",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return up(cmd.Context(), options) },
	}
	up.Flags().StringVar(&options.Proxy, "proxy", kubernetes.IPTables,
		"mode of kube-proxy: iptables or nftables")
	up.Flags().StringVar(&options.CNI, "cni", kubernetes.Bridge, "main CNI plugin: bridge or ptp")
	up.Flags().IntVar(&options.Nodes, "nodes", 3, "number of workers")

	enter := &cobra.Command{
		Use:   "exec COMMAND [ARGUMENT]...",
		Short: "Run a command in the cluster's namespaces, as kubectl get nodes or ip netns",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return attach(kubernetes.Enter(cmd.Context(), options, args...))
		},
	}
	enter.Flags().SetInterspersed(false)

	node := &cobra.Command{
		Use:   "node NAME COMMAND [ARGUMENT]...",
		Short: "Run a command on a node, as crictl or bash",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return attach(kubernetes.EnterNode(cmd.Context(), options, args[0], args[1:]...))
		},
	}
	node.Flags().SetInterspersed(false)
	root.AddCommand(up, enter, node)
	return root
}

// up runs a cluster until it is interrupted, or its control plane ends.
func up(ctx context.Context, options kubernetes.Options) error {
	code, inside, err := kubernetes.RunIsolated(options)
	if !inside {
		if err == nil && code != 0 {
			os.Exit(code) // it has said why
		}
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c, err := kubernetes.Start(ctx, options)
	if err != nil {
		return err
	}
	fmt.Println("The cluster is up. In another terminal: go run ./cmd/cluster exec kubectl get nodes")
	<-ctx.Done()
	return c.Alive()
}

// attach runs a command on this terminal.
func attach(cmd *exec.Cmd, err error) error {
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
