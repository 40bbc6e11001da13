// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// programOptions say how programs are measured.
type programOptions struct{ flows, packets, rounds int }

// programWay is a way of packets through a program.
type programWay struct {
	name, program string
	flows         int
	repeated      bool // by the kernel, with one packet; else one system call a packet
	measure       func() (packettest.Cost, error)

	over, ratio []float64 // over the empty program in ns, and of it: of each round
}

// measurePrograms runs each program on each of its ways, and by turns one that
// does nothing. Each round has all ways.
func measurePrograms(ctx context.Context, w io.Writer, o programOptions) error {
	spec, err := datapath.Spec()
	if err != nil {
		return err
	}
	n, err := packettest.NewNode(spec)
	if err != nil {
		return err
	}
	defer n.Close()
	ways := programWays(n, o)
	for range o.rounds {
		for _, way := range ways {
			if err := ctx.Err(); err != nil {
				return err
			}
			cost, err := way.measure()
			if err != nil {
				return fmt.Errorf("%s, %d flows: %w", way.name, way.flows, err)
			}
			way.over = append(way.over, float64(cost.Over()))
			way.ratio = append(way.ratio, float64(cost.Program)/float64(max(cost.Empty, 1)))
		}
	}
	fmt.Fprintf(w,
		"\nprograms: ns per packet over an empty program, medians of %d rounds (lowest..highest)\n",
		o.rounds)
	fmt.Fprintln(w, "  * The kernel repeats one packet. All else is run by one system call a "+
		"packet, in which each run begins with colder caches.")
	fmt.Fprintf(w, "  %-32s %-13s %8s  %22s %20s\n",
		"path", "program", "flows", "ns over empty", "times empty")
	for _, way := range ways {
		repeated := ""
		if way.repeated {
			repeated = " *"
		}
		fmt.Fprintf(w, "  %-32s %-13s %8d  %22s %20s%s\n", way.name, way.program, way.flows,
			spreadOf(way.over).text(0), spreadOf(way.ratio).text(1), repeated)
	}
	return nil
}

// programWays are all that is measured.
func programWays(n *packettest.Node, o programOptions) (all []*programWay) {
	for _, m := range packettest.Measurements(o.flows) {
		packets := o.packets
		if m.Fresh {
			packets = min(packets, m.Flows)
		}
		all = append(all, &programWay{
			name: m.Name, program: m.Program, flows: m.Flows, repeated: m.Repeatable,
			measure: func() (packettest.Cost, error) { return n.Measure(m, packets) },
		})
	}
	for _, flows := range []int{1, o.flows} {
		all = append(all, &programWay{name: "overlay/translated", program: "from_overlay", flows: flows,
			measure: func() (packettest.Cost, error) { return measureOverlay(n, flows, o.packets) }})
	}
	return all
}

// overlayTurn is how many packets a program gets before the other has its turn.
const overlayTurn = 1000

// measureOverlay measures from_overlay on the gateway of a pod of another node. It runs behind
// the program that gives a packet its tunnel key, and the empty one likewise.
func measureOverlay(n *packettest.Node, flows, packets int) (cost packettest.Cost, err error) {
	if err := n.Reset(); err != nil {
		return cost, err
	}
	w, quiet := packettest.World4, n.Config
	quiet.Flags &^= bpf.ConfigFlowEvents // nothing reads them
	err = errors.Join(
		n.SetConfig(quiet),
		n.Select(w, n.Here(w.Egress)),
		n.SetRemotePod(w.RemotePod),
	)
	if err != nil {
		return cost, err
	}
	inputs := make([][]byte, flows)
	for flow := range inputs {
		inputs[flow] = packettest.Build(
			packettest.Ethernet{Dst: n.MAC(packettest.OverlayDevice), Src: packettest.RouterMAC},
			packettest.IPv4{
				Src: w.RemotePod,
				Dst: w.Server,
			},
			packettest.UDP{Src: uint16(10000 + flow%50000), Dst: uint16(1000 + flow/50000)},
			packettest.Pattern(100),
		)
	}
	// This leaves the tunnel key in place for what follows.
	first, err := n.Run(packettest.Input{
		Program: "from_overlay",
		Device:  packettest.OverlayDevice,
		Packet:  inputs[0],
		Overlay: w.SecondNode,
	})
	if err != nil {
		return cost, err
	}
	if first.Reasons[bpf.ReasonTranslated] != 1 {
		return cost, fmt.Errorf("the program counts %v, not %s", first.Reasons, bpf.ReasonTranslated)
	}
	turn := func(
		program *ebpf.Program, want packettest.Verdict, first, last int,
	) (total time.Duration, err error) {
		if err := n.Map("inside").Put(uint32(0), program); err != nil {
			return 0, err
		}
		for i := first; i < last; i++ {
			verdict, took, err := n.Program("tunneled").Benchmark(inputs[i%flows], 1, nil)
			if err == nil && packettest.Verdict(verdict) != want {
				err = fmt.Errorf("the program says %s, not %s", packettest.Verdict(verdict), want)
			}
			if err != nil {
				return 0, err
			}
			total += took
		}
		return total, nil
	}
	if _, err := turn(n.Program("from_overlay"), packettest.Redirect, 0, flows); err != nil { // so that each flow is known
		return cost, err
	}
	for i := 0; i < packets; i += overlayTurn {
		last := min(i+overlayTurn, packets)
		program, err := turn(n.Program("from_overlay"), packettest.Redirect, i, last)
		if err != nil {
			return cost, err
		}
		empty, err := turn(n.Empty(), packettest.Next, i, last)
		if err != nil {
			return cost, err
		}
		cost.Program += program
		cost.Empty += empty
	}
	cost.Program /= time.Duration(packets)
	cost.Empty /= time.Duration(packets)
	return cost, nil
}
