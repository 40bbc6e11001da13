// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/columns"
	"github.com/sluice-net/sluice/sources/events"
	"github.com/sluice-net/sluice/tables"
)

func newMonitorCommand() *cobra.Command {
	var server *string
	var out output
	var kinds, reasons, pods []string
	cmd := &cobra.Command{
		Use:   "monitor",
		Short: "Show dropped packets and new flows of this node as they happen",
		Long: `Show dropped packets and new flows of this node as they happen, a line each,
until interrupted: what was dropped and why, or which way a flow goes, by which rule or
policy, and with which address it leaves. TCP flags are letters: FIN, SYN, RST,
PSH, ACK, URG, ECE, CWR. Filters may be repeated: one of each sort has to match.
How often what was dropped before is in the table drops.`,
		Example: `  sluice monitor
  sluice monitor --kind drop --pod default/web-
  sluice monitor --reason "no egress gateway" --reason no-egress-ip
  sluice monitor --pod 10.1.0.0/24 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := events.ParseFilter(kinds, reasons, pods); err != nil {
				return agent.UsageErrorf("%w", err)
			}
			ctx, cancel := untilInterrupted(cmd.Context())
			defer cancel()
			c, err := connect(ctx, *server)
			if err != nil {
				return err
			}
			defer c.close()
			m := monitor{client: c, out: out, w: cmd.OutOrStdout()}
			if err := m.follow(ctx, api.MonitorQuery(kinds, reasons, pods)); ctx.Err() == nil {
				return err
			}
			return nil // interrupted, as intended
		},
	}
	server = serverFlag(cmd.Flags())
	out = coloredOutputFlag(cmd.Flags(), outputText, outputJSON, outputYAML)
	cmd.Flags().StringArrayVar(&kinds, "kind", nil, "only drop, or only flow")
	cmd.Flags().StringArrayVar(&reasons, "reason", nil, "only what happened for this reason; a wrong one lists them")
	cmd.Flags().StringArrayVar(&pods, "pod", nil, "only from or to a pod: namespace/name, the beginning of it or of a name, an address, or a prefix")
	return cmd
}

// monitor prints events.
type monitor struct {
	*client
	out output
	w   io.Writer
}

// follow prints events as they come. It only returns with an error.
func (m monitor) follow(ctx context.Context, query string) error {
	return m.stream(ctx, "/monitor?"+query, m.print)
}

func (m monitor) print(raw json.RawMessage) error {
	var event tables.Event
	if err := json.Unmarshal(raw, &event); err != nil {
		return fmt.Errorf("decode an event: %w", err)
	}
	if event.Kind == "" {
		return nil // keeps the connection alive
	}
	if m.out.isData() {
		return m.out.printNext(m.w, raw)
	}
	line := columns.Clean(event.String())
	if m.out.colored(m.w) {
		line = columns.PaintVerdict(line)
	}
	_, err := fmt.Fprintln(m.w, line)
	return err
}
