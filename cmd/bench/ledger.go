// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// ledgerBuffer is the buffer of the ledger in bytes: it has room for all records of a round.
const ledgerBuffer = 1 << 26

// What a figure is of.
const (
	ofPacket     = "packet"
	ofConnection = "connection"
)

// ledgerNode is a node that writes a ledger, or not.
type ledgerNode struct {
	*packettest.Node
	ledger *bpf.Ledger // nil: none
}

// ledgerWay is what is measured on both nodes by turns.
type ledgerWay struct {
	name    string
	each    string // of what the figure is
	measure func(ledgerNode) (time.Duration, error)

	// Of each round: ns without and with, the difference, and the ratio.
	off, on, more, ratio []float64
}

// measureLedger measures what the ledger costs packets of known connections, and new connections,
// and the removal of connections.
func measureLedger(ctx context.Context, w io.Writer, o programOptions) error {
	var nodes [2]ledgerNode
	for i := range nodes {
		n, err := newLedgerNode(i == 1)
		if err != nil {
			return err
		}
		defer n.Close()
		nodes[i] = n
	}
	ways := ledgerWays(ctx, o)
	for round := range o.rounds {
		for _, way := range ways {
			var costs [2]float64
			for turn := range nodes {
				if err := ctx.Err(); err != nil {
					return err
				}
				i := (turn + round) % 2
				cost, err := way.measure(nodes[i])
				if err != nil {
					return fmt.Errorf("%s: %w", way.name, err)
				}
				records, err := nodes[i].drain()
				if err == nil && nodes[i].ledger != nil && way.each == ofConnection && records == 0 {
					err = errors.New("nothing was recorded")
				}
				if err != nil {
					return fmt.Errorf("%s: %w", way.name, err)
				}
				costs[i] = max(float64(cost), 1)
			}
			way.off, way.on = append(way.off, costs[0]), append(way.on, costs[1])
			way.more = append(way.more, costs[1]-costs[0])
			way.ratio = append(way.ratio, costs[1]/costs[0])
		}
	}
	fmt.Fprintf(w,
		"\nledger: ns without and with, by turns, medians of %d rounds (lowest..highest)\n",
		o.rounds)
	fmt.Fprintf(w, "  %-38s %-11s %19s %19s %19s %18s\n",
		"way", "of each", "without", "with", "more", "ratio")
	for _, way := range ways {
		fmt.Fprintf(w, "  %-38s %-11s %19s %19s %19s %18s\n", way.name, way.each,
			spreadOf(way.off).text(0), spreadOf(way.on).text(0), spreadOf(way.more).text(0),
			spreadOf(way.ratio).text(2))
	}
	return nil
}

func newLedgerNode(on bool) (n ledgerNode, err error) {
	spec, err := datapath.Spec()
	if err != nil {
		return n, err
	}
	if err := spec.Variables[bpf.LedgerOn].Set(on); err != nil {
		return n, fmt.Errorf("set %s: %w", bpf.LedgerOn, err)
	}
	if on {
		spec.Maps[bpf.LedgerMap].MaxEntries = ledgerBuffer
	}
	if n.Node, err = packettest.NewNode(spec); err != nil {
		return n, err
	}
	if on {
		n.ledger = &bpf.Ledger{Records: n.Map(bpf.LedgerMap), Missing: n.Map(bpf.MissingMap)}
	}
	return n, nil
}

// drain empties the buffer, and returns how many records it had. It must have had room for all.
func (n ledgerNode) drain() (records int, err error) {
	if n.ledger == nil {
		return 0, nil
	}
	missed, _, err := n.ledger.Missed()
	if err == nil && missed > 0 {
		err = fmt.Errorf("%d records had no room", missed)
	}
	if err != nil {
		return 0, err
	}
	rd, err := ringbuf.NewReader(n.ledger.Records)
	if err != nil {
		return 0, fmt.Errorf("open map %s: %w", bpf.LedgerMap, err)
	}
	defer rd.Close()
	rd.SetDeadline(time.Unix(1, 0)) // reads return what there is
	var record ringbuf.Record
	for ; ; records++ {
		if err := rd.ReadInto(&record); errors.Is(err, os.ErrDeadlineExceeded) {
			return records, nil
		} else if err != nil {
			return records, fmt.Errorf("read map %s: %w", bpf.LedgerMap, err)
		}
	}
}

// ledgerWays are all that is measured.
func ledgerWays(ctx context.Context, o programOptions) (all []*ledgerWay) {
	for _, m := range packettest.Measurements(o.flows) {
		packets, each := o.packets, ofPacket
		switch m.Name {
		case packettest.TranslatedHere:
		case packettest.NewTranslated:
			packets, each = m.Flows, ofConnection
		default:
			continue
		}
		all = append(all, &ledgerWay{
			name: fmt.Sprintf("%s, %d flows", m.Name, m.Flows), each: each,
			measure: func(n ledgerNode) (time.Duration, error) {
				cost, err := n.Measure(m, packets)
				return cost.Over(), err
			},
		})
		if m.Name == packettest.NewTranslated {
			all = append(all, &ledgerWay{
				name: fmt.Sprintf("removal, %d flows", m.Flows), each: ofConnection,
				measure: func(n ledgerNode) (time.Duration, error) {
					if _, err := n.Measure(m, packets); err != nil {
						return 0, err
					}
					return n.remove(ctx, m.Flows)
				},
			})
		}
	}
	return all
}

// remove removes all connections, and returns how long that takes for each.
func (n ledgerNode) remove(ctx context.Context, flows int) (time.Duration, error) {
	c, err := gc.OpenWith(gc.Maps{
		CT4TCP: n.Map(ctmap.CT4TCP), CT4Any: n.Map(ctmap.CT4Any), NAT4: n.Map(natmap.Name4),
	}, gc.Extras{Ledger: n.ledger})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	begun := time.Now()
	passes, err := c.Run(ctx, gc.Filter{All: true})
	took := time.Since(begun)
	if err != nil {
		return 0, err
	}
	translations := uint64(0)
	for _, p := range passes {
		translations += p.Translations + p.Flushed
	}
	if translations < uint64(2*flows) {
		return 0, fmt.Errorf("%d entries are removed, want %d at least", translations, 2*flows)
	}
	return took / time.Duration(flows), nil
}
