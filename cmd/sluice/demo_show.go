// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-net/sluice/cmd/lab"
)

// answerTimeout is for the server to answer.
const answerTimeout = 15 * time.Second

// observation is which source address the server sees of a pod.
type observation struct {
	pod    *lab.Pod
	how    string // tcp, udp, ping, or open: by a connection that exists
	server netip.Addr
	want   []netip.Addr // one of these
}

// observe asks the server and says what it sees.
func (d *demo) observe(ctx context.Context, observations ...observation) {
	for _, o := range observations {
		source, err := d.ask(ctx, o)
		d.report(o, source, err)
	}
}

func (d *demo) ask(ctx context.Context, o observation) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if o.how == "ping" {
		return d.PingWorld(ctx, o.pod.Namespace, o.server, 56)
	}
	source, err := o.pod.Ask(ctx, o.how, o.server)
	return source.Addr(), err
}

func (d *demo) report(o observation, source netip.Addr, err error) {
	seen, verdict := source.String(), d.owner(source)
	switch {
	case err != nil:
		seen, verdict = "no answer", fmt.Sprintf("WRONG: want %v: %v", o.want, err)
		d.wrong++
	case !slices.Contains(o.want, source):
		verdict = fmt.Sprintf("WRONG: want %v", o.want)
		d.wrong++
	}
	d.say("  %-16s on %s  %-4s  %-15s  sees %-15s  %s", o.pod.Name, o.pod.Node.Name, o.how, o.server, seen, verdict)
}

// owner says whose an address is.
func (d *demo) owner(addr netip.Addr) string {
	for _, n := range d.Nodes {
		switch addr {
		case n.OutsideIPv4:
			return n.Name
		case n.EgressIPv4:
			return "egress IP of " + n.Name
		}
	}
	return "of no node"
}

// showTables shows tables as sluice get does.
func (d *demo) showTables(ctx context.Context, n *lab.Node, tables ...string) error {
	for i, table := range tables {
		text, err := n.Agent.Table(ctx, table)
		if err != nil {
			return err
		}
		if i > 0 {
			d.say("")
		}
		d.say("  %s$ sluice get %s\n%s", n.Name, table, indent(text))
	}
	return nil
}

// showDrops shows what the agents know of packets that were dropped, if they do.
func (d *demo) showDrops(ctx context.Context) {
	for _, n := range d.Nodes {
		if text, err := n.Agent.Table(ctx, "drops"); err == nil && strings.Count(text, "\n") > 1 {
			d.say("\n  %s$ sluice get drops\n%s", n.Name, indent(text))
		}
	}
}

// table prints rows in columns.
func (d *demo) table(rows [][]string) {
	w := tabwriter.NewWriter(d.out, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t"))
	}
	_ = w.Flush() // an error of the output is none of the demo
}

// indent indents lines, and leaves out the last line's end.
func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("  " + line)
	}
	return strings.TrimRight(b.String(), "\n")
}
