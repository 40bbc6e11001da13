// SPDX-License-Identifier: Apache-2.0

// Command release makes the files of a release from the sources: for each platform
// an archive with the binary and a bill of its materials, and the checksums of all
// that is there. The same sources and the same Go make the same files.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	root := &cobra.Command{
		Use:           "release",
		Short:         "Make the files of a release",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(binariesCommand(), checksumsCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func binariesCommand() *cobra.Command {
	var b builder
	cmd := &cobra.Command{
		Use:   "binaries",
		Short: "Write an archive and a bill of materials for each platform",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if b.time, err = sourceTime(os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
				return err
			}
			if b.output, err = filepath.Abs(b.output); err != nil {
				return fmt.Errorf("find output: %w", err)
			}
			for _, arch := range []string{"amd64", "arm64"} {
				if err := b.platform(cmd.Context(), arch); err != nil {
					return fmt.Errorf("linux/%s: %w", arch, err)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&b.version, "version", "", "version of the release, such as v1.2.3")
	cmd.Flags().StringVar(&b.source, "source", "../..", "directory of the sources")
	cmd.Flags().StringVar(&b.output, "output", "", "directory to write to")
	for _, flag := range []string{"version", "output"} {
		_ = cmd.MarkFlagRequired(flag) // fails only for a flag that does not exist
	}
	return cmd
}

func checksumsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "checksums DIRECTORY",
		Short: "Write SHA256SUMS of the files of a directory, as sha256sum --check reads it",
		Args:  cobra.ExactArgs(1),
		RunE:  func(_ *cobra.Command, args []string) error { return writeChecksums(args[0]) },
	}
}

// sourceTime reads when the sources were changed last, as reproducible-builds.org has
// it: the time of all that is written. Without it that is 1970.
func sourceTime(epoch string) (time.Time, error) {
	if epoch == "" {
		epoch = "0"
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
