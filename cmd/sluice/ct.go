// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/cmd/suggest"
)

func newCTCommand() *cobra.Command {
	cmd := group("ct", "Show and remove the connections that this node tracks", `Show and remove the connections that this node tracks.

list and count read the pinned maps of the kernel, whether an agent runs or not,
and need root. gc and flush have the running agent do it; without one they do it
themselves, and keep an agent from starting meanwhile.`)
	cmd.AddCommand(newCTListCommand(), newCTCountCommand(), newCTGCCommand(), newCTFlushCommand())
	return cmd
}

func newNATCommand() *cobra.Command {
	cmd := group("nat", "Show the translations that this node has made", `Show the translations that this node has made: which source packets of a pod
leave with, and which destination the replies get. They are read from the pinned
maps of the kernel, whether an agent runs or not; that needs root.`)
	cmd.AddCommand(newNATListCommand(), newNATCountCommand())
	return cmd
}

// group returns a command that consists of others.
func group(use, short, long string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			var names []string
			for _, c := range cmd.Commands() {
				names = append(names, c.Name())
			}
			if near := suggest.Nearest(args[0], names); len(near) > 0 {
				names = near
			}
			return agent.UsageErrorf("unknown command %q for %q: want %s; see %[2]s --help", args[0], cmd.CommandPath(), strings.Join(names, ", "))
		},
	}
}

// bpffsFlag adds the flag that says where the maps are.
func bpffsFlag(flags *pflag.FlagSet) *string {
	return flags.String("bpffs", cmp.Or(os.Getenv(agent.EnvironmentName("bpffs")), bpf.DefaultConfig.BPFFS),
		"BPF file system in which the agent's maps are pinned")
}

// chosenBPFFS returns the BPF file system that was asked for as an absolute path,
// empty if it may be any agent's.
func chosenBPFFS(flags *pflag.FlagSet) (string, error) {
	f := flags.Lookup("bpffs")
	if !f.Changed && os.Getenv(agent.EnvironmentName("bpffs")) == "" {
		return "", nil
	}
	return filepath.Abs(f.Value.String())
}

func isUsage(err error) bool {
	var usage agent.UsageError
	return errors.As(err, &usage)
}

// printRecords prints records as an array.
func printRecords[R any](out output, w io.Writer, records []R) error {
	if records == nil {
		records = []R{}
	}
	return out.printValue(w, records)
}
