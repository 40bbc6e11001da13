// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-net/sluice/cmd/agent"
	"github.com/sluice-net/sluice/reconcilers/ledger"
)

// ledgerProtocols are what may be asked for, in upper case: what is translated.
var ledgerProtocols = []string{"TCP", "UDP", "ICMP", "ICMPV6"}

func newLedgerCommand() *cobra.Command {
	var file, at, to, protocol string
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "ledger ADDRESS[:PORT]",
		Short: "Find out which pod had an egress address and port",
		Long: `Find out which pods had an egress address and port, towards which destinations, and
from when to when. It reads the files that the agent of this node, which has
translated the packets, has written with --ledger-file. Without a port it is all ports.
A time without fraction is that whole second. A pod that still has it has no end.
An end with "evicted" or "unknown" is the latest that it can be; one that is
unknown and has no time may be among missing records. What is missing in the
files, and whether the clock was set, is reported on standard error.`,
		Example: `  sluice ledger 203.0.113.102:40001 --at 2026-11-24T12:00:00Z
  sluice ledger 203.0.113.102 --at 2026-11-24T12:00:00Z --to 198.51.100.10:443
  sluice ledger [2001:db8::7]:40001 -o json`,
		Args: args("ADDRESS[:PORT]"),
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "file", ledger.DefaultFile, "file that --ledger-file of the agent names")
	flags.StringVar(&at, "at", "", "time of the question, as 2026-11-24T12:00:00Z; empty: any")
	flags.DurationVar(&within, "within", 0,
		"by how much the clock of --at may differ from this node's, as 5s")
	flags.StringVar(&to, "to", "", "destination, as ADDRESS or ADDRESS:PORT; empty: any")
	flags.StringVar(&protocol, "protocol", "", "TCP, UDP, ICMP or ICMPv6; empty: any")
	out := tableOutputFlag(flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q := ledger.Question{Protocol: protocol}
		egress, err := parsePeer(args[0])
		if err != nil {
			return agent.UsageErrorf("%q: %v", args[0], err)
		}
		q.Egress, q.Port = egress.Addr(), egress.Port()
		if protocol != "" && !slices.Contains(ledgerProtocols, strings.ToUpper(protocol)) {
			return agent.UsageErrorf("--protocol %q: want TCP, UDP, ICMP or ICMPv6", protocol)
		}
		if to != "" {
			if q.Destination, err = parsePeer(to); err != nil {
				return agent.UsageErrorf("--to %q: %v", to, err)
			}
		}
		if at != "" {
			if q.From, err = time.Parse(time.RFC3339, at); err != nil {
				return agent.UsageErrorf("--at %q: want a time such as 2026-11-24T12:00:00Z", at)
			}
			q.To = q.From
			if q.From.Nanosecond() == 0 {
				q.To = q.From.Add(time.Second - 1)
			}
			q.From, q.To = q.From.Add(-within), q.To.Add(within)
		}
		if within < 0 || within != 0 && at == "" {
			return agent.UsageErrorf("--within %s: want a duration that is not negative, and --at", within)
		}
		answer, err := ledger.Search(file, q)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: the agent writes one with --ledger-file", err)
		} else if err != nil {
			return err
		}
		switch {
		case answer.First.IsZero():
			fmt.Fprintln(cmd.ErrOrStderr(), "sluice: the files have no records: they tell of no time")
		case at != "" && q.From.Before(answer.First):
			fmt.Fprintf(cmd.ErrOrStderr(), "sluice: the files begin at %s: they do not tell of before\n",
				answer.First.Format(time.RFC3339))
		}
		for _, m := range answer.Missing {
			fmt.Fprintln(cmd.ErrOrStderr(), "sluice:", missingText(&m))
		}
		for _, c := range answer.Clock {
			fmt.Fprintf(cmd.ErrOrStderr(), "sluice: the clock of the node was set by %s at %s\n",
				c.Step, c.Time.Format(time.RFC3339))
		}
		if out.isData() {
			return out.printValue(cmd.OutOrStdout(), answer)
		}
		return out.printRows(cmd.OutOrStdout(), heldRows(answer.Held))
	}
	return cmd
}

// parsePeer returns an address, with a port or without.
func parsePeer(text string) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), 0), nil
	}
	peer, err := netip.ParseAddrPort(text)
	if err != nil {
		return peer, errors.New("want ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT")
	}
	return netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port()), nil
}

func missingText(m *ledger.Record) string {
	when := m.Time.Format(time.RFC3339)
	count := strconv.FormatUint(m.Count, 10)
	switch {
	case m.Event == ledger.Start && m.Reason == ledger.StartNew:
		return "records may be missing before " + when + ", when the kernel's buffer was new: " +
			"the node has started, or the ledger was off"
	case m.Event == ledger.Start:
		return "at most " + count + " records are missing before " + when +
			", when an agent was started after one was killed"
	case m.Reason == ledger.MissingLines:
		if m.Time.IsZero() {
			when = "the beginning"
		}
		return count + " lines after " + when + " cannot be read"
	case m.Reason == ledger.MissingVersion:
		return count + " records of another version are missing before " + when
	case m.Reason == ledger.MissingOutput:
		return count + " records are missing before " + when + ", as they could not be written"
	}
	return count + " records are missing before " + when + ", as the kernel's buffer was full"
}

func heldRows(held []ledger.Held) [][]string {
	rows := [][]string{{
		"From", "Until", "End", "Pod", "PodAddress", "Node", "Protocol", "Egress", "Destination",
		"LastUsed",
	}}
	timeOf := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.UTC().Format(time.RFC3339)
	}
	orDash := func(text string) string {
		if text == "" {
			return "-"
		}
		return text
	}
	for _, h := range held {
		pod := "-"
		if h.Pod != "" {
			pod = h.Namespace + "/" + h.Pod
		}
		rows = append(rows, []string{
			timeOf(h.Time), timeOf(h.Until), orDash(h.EndReason), pod, h.PodAddress.String(), orDash(h.Node),
			h.Protocol, h.Egress.String(), h.Destination.String(), timeOf(h.LastUsed),
		})
	}
	return rows
}
