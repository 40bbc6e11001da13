// SPDX-License-Identifier: Apache-2.0

// Command helm makes what is made of the chart in deploy/helm: the plain manifests of
// deploy/, the table of values in the chart's README, the copies of other files in the
// chart, and the package of a release.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func main() {
	root := &cobra.Command{
		Use:           "helm",
		Short:         "Make what is made of the chart",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	deploy := root.PersistentFlags().String("deploy", "../../deploy", "directory of the chart and of the manifests")
	root.AddCommand(manifestsCommand(deploy), packageCommand(deploy))
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		os.Exit(1)
	}
}

func manifestsCommand(deploy *string) *cobra.Command {
	return &cobra.Command{
		Use:   "manifests",
		Short: "Write the plain manifests, and the table of values",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			files, err := generated(*deploy)
			if err != nil {
				return err
			}
			return writeFiles(*deploy, files)
		},
	}
}

func packageCommand(deploy *string) *cobra.Command {
	var version, output string
	cmd := &cobra.Command{
		Use:   "package",
		Short: "Write the chart of a release as an archive, and its plain manifests in one file",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return writeRelease(*deploy, version, output) },
	}
	cmd.Flags().StringVar(&version, "version", "", "version of the release, such as v1.2.3")
	cmd.Flags().StringVar(&output, "output", "", "directory to write them to")
	for _, flag := range []string{"version", "output"} {
		_ = cmd.MarkFlagRequired(flag) // fails only for a flag that does not exist
	}
	return cmd
}

// writeFiles writes files by their paths below a directory.
func writeFiles(dir string, files map[string][]byte) error {
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return fmt.Errorf("write file: %w", err)
		}
	}
	return nil
}
