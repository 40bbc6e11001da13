// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/api"
	"github.com/sluice-net/sluice/cmd/columns"
	"github.com/sluice-net/sluice/tables/explain"
)

func newExplainCommand() *cobra.Command {
	cmd := group("explain", "Say what becomes of a packet on this node, and why", `Say what becomes of a packet on this node, and why: by the tables, which are what
the agent wants, and by the maps, which packets use. If these differ it
is said, and the exit code is 1.

FROM and TO are namespace/pod, an address, or an entity: host, remote-node, world,
world-ipv4, world-ipv6, cluster, kube-apiserver. For an entity that is many
addresses, one that no policy tells apart from the rest stands for all.`)
	cmd.AddCommand(newExplainPolicyCommand(), newExplainEgressCommand())
	return cmd
}

func newExplainPolicyCommand() *cobra.Command {
	return explainCommand(&cobra.Command{
		Use:   "policy FROM TO PORT[/PROTOCOL]",
		Short: "Say whether network policies allow a new connection, and which rules",
		Long: `Say whether network policies allow a new connection, and by which rules, ruleset,
class and entries of the maps. Judged is what this node judges: what FROM may send, if that
is a pod of this node, and what TO lets in, if that is one; it names the nodes that judge the
rest. If TO is outside the cluster it says how the connection leaves. PORT is a number, or
the name of a port of TO; the protocol is tcp, if it is not given. Of ICMP it is the
type, as in 8/icmp. For the address of a service PORT is one of the service, and
the backends are judged at the ports that it leads to.`,
		Example: `  sluice explain policy shop/client shop/web 80
  sluice explain policy world shop/web https/tcp
  sluice explain policy shop/web 10.96.0.10 53/udp -o json
  sluice explain policy host shop/web 8/icmp`,
		Args:              args("FROM", "TO", "PORT[/PROTOCOL]"),
		ValidArgsFunction: completePeers(2),
	}, func(args []string) string { return api.ExplainPolicyPath(args[0], args[1], args[2]) },
		func(data []byte, w io.Writer) ([]string, error) {
			var answer explain.Policy
			if err := json.Unmarshal(data, &answer); err != nil {
				return nil, fmt.Errorf("decode the agent's answer: %w", err)
			}
			return answer.AllDifferences(), answer.Print(w)
		})
}

func newExplainEgressCommand() *cobra.Command {
	return explainCommand(&cobra.Command{
		Use:   "egress FROM TO",
		Short: "Say by which gateway a new connection leaves the cluster, and why",
		Long: `Say by which gateway a new connection leaves the cluster, with which address, and
by which policy; or why it does not. Ask on the node of FROM, or on the gateway,
which alone knows the address.`,
		Example: `  sluice explain egress shop/checkout 198.51.100.10
  sluice explain egress 10.1.0.5 198.51.100.10 -o json`,
		Args:              args("FROM", "TO"),
		ValidArgsFunction: completePeers(2),
	}, func(args []string) string { return api.ExplainEgressPath(args[0], args[1]) },
		func(data []byte, w io.Writer) ([]string, error) {
			var answer explain.Egress
			if err := json.Unmarshal(data, &answer); err != nil {
				return nil, fmt.Errorf("decode the agent's answer: %w", err)
			}
			return answer.Differences, answer.Print(w)
		})
}

func printVerdict(w io.Writer, out output, text string) error {
	if out.colored(w) {
		text = columns.PaintVerdict(text)
	}
	_, err := io.WriteString(w, text)
	return err
}

// explainCommand completes a command that asks the agent by a path. decode
// prints the answer, and returns the differences in it.
func explainCommand(
	cmd *cobra.Command, path func([]string) string, decode func([]byte, io.Writer) ([]string, error),
) *cobra.Command {
	server := serverFlag(cmd.Flags())
	out := coloredOutputFlag(cmd.Flags(), outputText, outputJSON, outputYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		data, err := ask(cmd.Context(), *server, path(args))
		if err != nil {
			return err
		}
		if out.isData() {
			if err := out.printJSON(cmd.OutOrStdout(), data); err != nil {
				return err
			}
		}
		var text strings.Builder
		differences, err := decode(data, &text)
		if err == nil && !out.isData() {
			err = printVerdict(cmd.OutOrStdout(), out, text.String())
		}
		if err == nil && len(differences) > 0 {
			err = fmt.Errorf("the maps differ from the tables:\n  %s", strings.Join(differences, "\n  "))
		}
		return err
	}
	return cmd
}

// ask returns the agent's answer as it is.
func ask(ctx context.Context, server, path string) (data json.RawMessage, err error) {
	c, err := connect(ctx, server)
	if err != nil {
		return nil, err
	}
	defer c.close()
	return data, c.getJSON(ctx, path, &data)
}
