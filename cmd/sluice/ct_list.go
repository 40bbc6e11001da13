// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/cmd/api"
)

func newCTListCommand() *cobra.Command {
	s := &selection{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tracked connections",
		Long: `List tracked connections, in the order of their addresses. Age and Expires are
seconds by the clock of the maps; what has expired and was not removed yet has a
negative number. Gateway is the node that a connection leaves by.
` + filterHelp,
		Example: `  sluice ct list
  sluice ct list --pod default/web- --protocol tcp --state established
  sluice ct list --ip 203.0.113.0/24 --port 443
  sluice ct list --expired -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(cmd, s, (*openMaps).connections, connectionsOf, (*names).connectionRows)
		},
	}
	s.addState(cmd.Flags())
	s.add(cmd.Flags())
	return cmd
}

// connection is a connection as sluice ct list prints it.
type connection struct {
	ctmap.Record
	SourcePod      string `json:"sourcePod,omitempty"` // namespace/name, if the agent knows it
	DestinationPod string `json:"destinationPod,omitempty"`
	GatewayNode    string `json:"gatewayNode,omitempty"`
}

// list prints what is chosen of the maps of a sort.
func list[M ctmap.Any, R any](cmd *cobra.Command, s *selection, maps func(*openMaps) []M,
	chosenOf func(m M, now uint32, match *api.ParsedMatch, n *names) ([]R, error),
	rows func(n *names, list []R) [][]string,
) error {
	if err := s.check(); err != nil {
		return err
	}
	pinned, err := openPinned(*s.bpffs)
	if err != nil {
		return err
	}
	defer pinned.close()
	n, match, err := s.named(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	var all []R
	for _, m := range maps(pinned) {
		chosen, err := chosenOf(m, pinned.now, match, n)
		if err != nil {
			return mapsError(err)
		}
		all = append(all, chosen...)
	}
	if s.out.isData() {
		return printRecords(s.out, cmd.OutOrStdout(), all)
	}
	return s.out.printRows(cmd.OutOrStdout(), rows(n, all))
}

func connectionsOf(m ctmap.Map, now uint32, match *api.ParsedMatch, n *names) (list []connection, err error) {
	records, err := m.Records(now, &match.Match)
	for _, r := range records {
		if match.Translation(r.Tuple()) {
			list = append(list, connection{r, n.pods[r.Source.Addr()], n.pods[r.Destination.Addr()], n.nodes[r.Gateway]})
		}
	}
	return list, err
}

func (n *names) connectionRows(list []connection) [][]string {
	rows := [][]string{{"Protocol", "Source", "Destination", "Direction", "State", "Age", "Expires", "Packets", "Bytes", "Gateway"}}
	for i := range list {
		c := &list[i]
		expires := "-"
		if c.State != ctmap.Condemned {
			expires = fmt.Sprintf("%ds", c.ExpiresInSeconds)
		}
		rows = append(rows, []string{
			c.Protocol.String(), n.peer(c.Source), n.peer(c.Destination), c.Tuple().Flags.String(), string(c.State),
			ctmap.Seconds(c.AgeSeconds), expires, strconv.FormatUint(c.Packets, 10), strconv.FormatUint(c.Bytes, 10), n.node(c.Gateway),
		})
	}
	return rows
}
