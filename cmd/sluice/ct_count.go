// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/cmd/api"
)

func newCTCountCommand() *cobra.Command {
	s := &selection{}
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count tracked connections",
		Long: `Count tracked connections: how many each map has, by the kernel's own counter,
of how many it has room for. Pressure is the share; from about 1 on, new ones
evict the least recently used. With filters also how many match.
` + filterHelp,
		Example: `  sluice ct count
  sluice ct count --state established --state syn
  sluice ct count --pod default/web-1 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return countMaps(cmd, s, (*openMaps).connections, func(m ctmap.Map, match *api.ParsedMatch, now uint32) (n int, err error) {
				err = m.Each(func(t ctmap.Tuple, e ctmap.Entry) bool {
					if match.Connection(t, &e, now) {
						n++
					}
					return true
				})
				return n, err
			})
		},
	}
	s.addState(cmd.Flags())
	s.add(cmd.Flags())
	return cmd
}

func newNATCountCommand() *cobra.Command {
	s := &selection{}
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count translations",
		Long: `Count entries of translations, of which a connection has two, as sluice ct count
counts connections.
` + filterHelp,
		Example: `  sluice nat count
  sluice nat count --ip 203.0.113.102 --direction in`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return countMaps(cmd, s, (*openMaps).translations, func(m natmap.Map, match *api.ParsedMatch, _ uint32) (n int, err error) {
				err = m.Each(func(t ctmap.Tuple, to natmap.Translation) bool {
					if match.Translation(t, to.To) {
						n++
					}
					return true
				})
				return n, err
			})
		},
	}
	s.add(cmd.Flags())
	return cmd
}

// mapCount is a map as sluice ct count prints it.
type mapCount struct {
	Map      string  `json:"map"`
	Entries  int     `json:"entries"`
	Size     int     `json:"size"`
	Pressure float64 `json:"pressure"`
	Matching *int    `json:"matching,omitempty"` // nil if there is no filter
}

func countMaps[M ctmap.Any](cmd *cobra.Command, s *selection, maps func(*openMaps) []M,
	matching func(M, *api.ParsedMatch, uint32) (int, error),
) error {
	if err := s.check(); err != nil {
		return err
	}
	pinned, err := openPinned(*s.bpffs)
	if err != nil {
		return err
	}
	defer pinned.close()
	if err := s.resolveBy(cmd.Context(), *s.server); err != nil {
		return err
	}
	match, err := parseMatch(&s.match)
	if err != nil {
		return err
	}
	entries, err := pinned.count()
	if err != nil {
		return mapsError(err)
	}
	var list []mapCount
	for _, m := range maps(pinned) {
		c := mapCount{Map: m.Name(), Entries: entries[m.Name()], Size: m.MaxEntries()}
		c.Pressure = float64(c.Entries) / float64(c.Size)
		if !s.empty() {
			n, err := matching(m, match, pinned.now)
			if err != nil {
				return mapsError(err)
			}
			c.Matching = &n
		}
		list = append(list, c)
	}
	if s.out.isData() {
		return printRecords(s.out, cmd.OutOrStdout(), list)
	}
	return s.out.printRows(cmd.OutOrStdout(), countRows(list))
}

func countRows(list []mapCount) [][]string {
	header := []string{"Map", "Entries", "Size", "Pressure"}
	if len(list) > 0 && list[0].Matching != nil {
		header = append(header, "Matching")
	}
	rows := [][]string{header}
	for _, c := range list {
		row := []string{c.Map, strconv.Itoa(c.Entries), strconv.Itoa(c.Size), fmt.Sprintf("%.1f %%", 100*c.Pressure)}
		if c.Matching != nil {
			row = append(row, strconv.Itoa(*c.Matching))
		}
		rows = append(rows, row)
	}
	return rows
}
