// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/cmd/api"
)

func newCTFlushCommand() *cobra.Command {
	c := &collect{}
	f := &ctFilter{}
	var all bool
	cmd := &cobra.Command{
		Use:   "flush",
		Short: "Remove connections, also those in use",
		Long: `Remove connections and their translations, also those in use. Their next packet
is decided on anew, as if it began a connection: by the policies as they are now,
and with a port of the egress address that may be another. Replies that come
before it are not known any more, so that what is established may break.

The running agent does it, and has the passes in its table ct-gc-runs. Without
one this command does it.
` + filterHelp,
		Example: `  sluice ct flush --pod default/web-1
  sluice ct flush --ip 198.51.100.0/24 --protocol tcp --port 443
  sluice ct flush --all`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if f.empty() != all {
				return agent.UsageErrorf("want either filters that choose connections, or --all")
			}
			request := &api.GCRequest{Reason: "sluice ct flush", All: all}
			if !all {
				if err := f.resolveBy(cmd.Context(), *c.server); err != nil {
					return err
				}
				if _, err := parseMatch(&f.match); err != nil {
					return err
				}
				request.Match = &f.match
			}
			passes, err := c.do(cmd, request)
			if err != nil {
				return err
			}
			if c.out.isData() {
				return printRecords(c.out, cmd.OutOrStdout(), passes)
			}
			return printFlushed(cmd.OutOrStdout(), passes)
		},
	}
	f.addTuple(cmd.Flags())
	f.addState(cmd.Flags())
	cmd.Flags().BoolVar(&all, "all", false, "remove all connections and translations")
	c.add(cmd.Flags())
	c.out = outputFlag(cmd.Flags(), outputText, outputJSON, outputYAML)
	return cmd
}

func printFlushed(w io.Writer, passes []gc.Pass) error {
	var connections, translations uint64
	for _, p := range passes {
		removed := p.Removed() - p.Translations
		translations += p.Translations
		if strings.Contains(p.Map, "nat") {
			translations += removed
		} else {
			connections += removed
		}
	}
	_, err := fmt.Fprintf(w, "removed %d connections and %d entries of translations\n", connections, translations)
	return err
}
