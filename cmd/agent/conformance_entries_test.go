// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// entries is the command that compares all verdicts with a file, with names in
// the place of numbers: of the pods that are in a subject class, and of those
// who are in a peer class.
func (c *cluster) entries() script.Cmd {
	return script.Command(
		script.CmdUsage{Summary: "Compare policy-entries with a table, which names the pods of subject classes and the members of peer classes", Args: "FILE"},
		func(s *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) != 1 {
				return nil, script.ErrUsage
			}
			want, err := os.ReadFile(s.Path(args[0]))
			if err != nil {
				return nil, err
			}
			got := c.namedEntries(c.oracle.DB.ReadTxn())
			switch {
			case oneSpace(got) == oneSpace(string(want)):
				return nil, nil
			case s.DoUpdate:
				s.FileUpdates[args[0]] = got
				return nil, nil
			}
			return nil, fmt.Errorf("entries differ: want\n%sgot\n%s", want, got)
		})
}

// oneSpace makes tables comparable that are aligned in different ways.
func oneSpace(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

func (c *cluster) namedEntries(txn statedb.ReadTxn) string {
	subjects, peers := c.subjectNames(txn), c.peerNames(txn)
	var rows [][]string
	for e := range c.desire.Verdicts.All(txn) {
		peer := "any"
		if e.Key.Peer != bpf.AnyPeerClass {
			peer = join(peers[e.Key.Peer])
		}
		columns := e.TableRow() // Subject Peer Direction Traffic Verdict Precedence Rules
		rows = append(rows, []string{join(subjects[e.Key.Subject]), columns[2], peer, columns[3], columns[4], columns[6]})
	}
	slices.SortFunc(rows, func(a, b []string) int {
		// Of any peer first: it is what the others are exceptions of.
		return cmp.Or(slices.Compare(a[:2], b[:2]), cmp.Compare(b2i(a[2] != "any"), b2i(b[2] != "any")), slices.Compare(a[2:], b[2:]))
	})
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, row := range append([][]string{{"Subject", "Direction", "Peer", "Traffic", "Verdict", "Rules"}}, rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	return b.String()
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func join(names []string) string {
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), ", ")
}

func (c *cluster) subjectNames(txn statedb.ReadTxn) map[uint32][]string {
	names := map[uint32][]string{}
	for e := range c.desire.Locals.All(txn) {
		names[e.SubjectClass] = append(names[e.SubjectClass], e.Endpoint.String())
	}
	return names
}

// peerNames leaves out prefixes inside others of the same class.
func (c *cluster) peerNames(txn statedb.ReadTxn) map[uint32][]string {
	names := map[uint32][]string{}
	classes := map[netip.Prefix]uint32{}
	for e := range c.desire.IPCache.All(txn) {
		classes[e.Prefix] = e.PeerClass
	}
	for e := range c.desire.IPCache.All(txn) {
		origin := ""
		if len(e.Origins) > 0 {
			origin = e.Origins[0]
		}
		pod, isPod := strings.CutPrefix(origin, "pod ")
		node, isNode := strings.CutPrefix(origin, "node ")
		name := e.Prefix.String()
		switch {
		case isPod && e.Prefix.IsSingleIP():
			name = pod
		case isNode && e.Prefix.IsSingleIP():
			name = node
		case coveredAlike(classes, e):
			continue
		}
		names[e.PeerClass] = append(names[e.PeerClass], name)
	}
	return names
}

// coveredAlike reports whether the longest prefix around another is of its class.
func coveredAlike(classes map[netip.Prefix]uint32, e *tables.IPCache) bool {
	for bits := e.Prefix.Bits() - 1; bits >= 0; bits-- {
		if class, found := classes[netip.PrefixFrom(e.Prefix.Addr(), bits).Masked()]; found {
			return class == e.PeerClass
		}
	}
	return false
}
