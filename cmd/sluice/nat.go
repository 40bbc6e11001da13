// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/cmd/api"
)

func newNATListCommand() *cobra.Command {
	s := &selection{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List translations",
		Long: `List translations, in the order of the pods' addresses. One with the direction out
has the packets of the pod, whose source is translated; one with in has the
replies, whose destination is. Idle is since when no packet of the pod was
translated. Node is where the pod is, if that is another node.
` + filterHelp + `
An address or port may also be that which is translated to.`,
		Example: `  sluice nat list
  sluice nat list --pod default/web- --direction out
  sluice nat list --ip 203.0.113.102 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return list(cmd, s, (*openMaps).translations, translationsOf, (*names).translationRows)
		},
	}
	s.add(cmd.Flags())
	return cmd
}

// translation is a translation as sluice nat list prints it.
type translation struct {
	natmap.Record
	SourcePod      string `json:"sourcePod,omitempty"` // namespace/name, if the agent knows it
	DestinationPod string `json:"destinationPod,omitempty"`
	ToPod          string `json:"toPod,omitempty"`
	TunnelNode     string `json:"tunnelNode,omitempty"`
}

func translationsOf(m natmap.Map, now uint32, match *api.ParsedMatch, n *names) (list []translation, err error) {
	records, err := m.Records(now, &match.Match)
	for _, r := range records {
		if match.Translation(r.Tuple(), r.To) {
			list = append(list, translation{
				r, n.pods[r.Source.Addr()], n.pods[r.Destination.Addr()], n.pods[r.To.Addr()], n.nodes[r.Tunnel],
			})
		}
	}
	slices.SortStableFunc(list, comparePairs)
	return list, err
}

// comparePairs has both entries of a translation follow each other.
func comparePairs(a, b translation) int {
	return cmp.Or(a.connection().Compare(b.connection()), cmp.Compare(a.Tuple().Flags, b.Tuple().Flags))
}

// connection returns the tuple of the pod's packets.
func (t *translation) connection() ctmap.Tuple {
	tuple := t.Tuple()
	if t.Direction == ctmap.DirectionIn {
		tuple.Source, tuple.Destination = t.To, t.Source
	}
	tuple.Flags = ctmap.Out
	return tuple
}

func (n *names) translationRows(list []translation) [][]string {
	rows := [][]string{{"Protocol", "Source", "Destination", "Direction", "To", "Age", "Idle", "Node"}}
	for i := range list {
		t := &list[i]
		idle := ctmap.Seconds(t.IdleSeconds)
		if t.Condemned {
			idle = "condemned"
		}
		rows = append(rows, []string{
			t.Protocol.String(), n.peer(t.Source), n.peer(t.Destination), t.Tuple().Flags.String(), n.peer(t.To),
			ctmap.Seconds(t.AgeSeconds), idle, n.node(t.Tunnel),
		})
	}
	return rows
}
