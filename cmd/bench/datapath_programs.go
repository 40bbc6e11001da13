// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// programResult is what a packet costs on one way through a program, in ns.
type programResult struct {
	Path     string `json:"path"`
	Program  string `json:"program"`
	Flows    int    `json:"flows"`
	Packets  int    `json:"packets"`  // of each round
	Repeated bool   `json:"repeated"` // by the kernel, with one packet; else one system call a packet
	Over     spread `json:"overEmptyNs"`
	Empty    spread `json:"emptyNs"`
	Ratio    spread `json:"ratioToEmpty"` // within rounds

	measure func() (packettest.Cost, error)
}

// measurePrograms runs each program on each of its ways, and by turns one that
// does nothing. Each round has all ways.
func measurePrograms(ctx context.Context, o *datapathOptions) ([]programResult, error) {
	spec, err := datapath.Spec()
	if err != nil {
		return nil, err
	}
	n, err := packettest.NewNode(spec)
	if err != nil {
		return nil, err
	}
	defer n.Close()
	all := programWays(n, o)
	rounds := make([][]packettest.Cost, len(all))
	for range o.programRounds {
		for i, r := range all {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			cost, err := r.measure()
			if err != nil {
				return nil, fmt.Errorf("%s, %d flows: %w", r.Path, r.Flows, err)
			}
			rounds[i] = append(rounds[i], cost)
		}
	}
	for i := range all {
		all[i].take(rounds[i])
	}
	return all, nil
}

// take summarizes the rounds.
func (r *programResult) take(rounds []packettest.Cost) {
	var over, empty, ratio []float64
	for _, c := range rounds {
		over, empty = append(over, float64(c.Over())), append(empty, float64(c.Empty))
		ratio = append(ratio, float64(c.Program)/float64(max(c.Empty, 1)))
	}
	r.Over, r.Empty, r.Ratio = spreadOf(over), spreadOf(empty), spreadOf(ratio)
}

// programWays are all that is measured.
func programWays(n *packettest.Node, o *datapathOptions) (all []programResult) {
	for _, m := range packettest.Measurements(o.flows) {
		packets := o.packets
		if m.Fresh {
			packets = min(packets, m.Flows)
		}
		// What can be repeated is run one by one too, to compare with what cannot.
		oneByOne := m
		oneByOne.Repeatable = false
		ways := []packettest.Measurement{m, oneByOne}
		if !m.Repeatable {
			ways = ways[1:]
		}
		for _, way := range ways {
			all = append(all, programResult{Path: way.Name, Program: way.Program, Flows: way.Flows, Packets: packets, Repeated: way.Repeatable,
				measure: func() (packettest.Cost, error) { return n.Measure(way, packets) }})
		}
	}
	for _, way := range overlayWays {
		for _, flows := range []int{1, o.flows} {
			all = append(all, programResult{Path: way.name, Program: "from_overlay", Flows: flows, Packets: o.packets,
				measure: func() (packettest.Cost, error) { return measureOverlay(n, way, flows, o.packets) }})
		}
	}
	return append(all, programResult{Path: "forward/not-covered", Program: "backstop", Flows: 1, Packets: o.packets, Repeated: true,
		measure: func() (packettest.Cost, error) { return measureBackstop(n, o.packets) }})
}

// overlayWay is a way through from_overlay, whose packets come with a tunnel key.
type overlayWay struct {
	name    string
	reason  bpf.Reason // that the program counts
	prepare func(n *packettest.Node, flows int) error
	packet  func(n *packettest.Node, flow int) []byte
}

var overlayWays = []overlayWay{
	{name: "overlay/translated", reason: bpf.ReasonTranslated, prepare: prepareTranslated, packet: func(n *packettest.Node, flow int) []byte {
		w := packettest.World4
		return overlayFrame(n, packettest.IPv4{Src: w.RemotePod, Dst: w.Server}, podPort(flow), serverPort(flow))
	}},
	{name: "overlay/reply", reason: bpf.ReasonReplyLocal, prepare: prepareReply, packet: func(n *packettest.Node, flow int) []byte {
		w := packettest.World4
		return overlayFrame(n, packettest.IPv4{Src: w.Server, Dst: w.Pod}, serverPort(flow), podPort(flow))
	}},
}

const payload = 100 // bytes of each measured packet behind its UDP header

func podPort(flow int) uint16    { return uint16(10000 + flow%50000) }
func serverPort(flow int) uint16 { return uint16(1000 + flow/50000) }

func overlayFrame(n *packettest.Node, ip packettest.IPv4, sport, dport uint16) []byte {
	return packettest.Build(packettest.Ethernet{Dst: n.MAC(packettest.OverlayDevice), Src: packettest.RouterMAC},
		ip, packettest.UDP{Src: sport, Dst: dport}, packettest.Pattern(payload))
}

// prepareTranslated makes the node the gateway of a pod of another.
func prepareTranslated(n *packettest.Node, _ int) error {
	w := packettest.World4
	return errors.Join(n.Select(w, n.Here(w.Egress)), n.SetSource(w.RemotePod, packettest.Class))
}

// prepareReply has a pod of the node send all flows by another node.
func prepareReply(n *packettest.Node, flows int) error {
	w := packettest.World4
	const loopback = 1 // where packets of a test run without a context come from
	err := errors.Join(
		n.Select(w, bpf.GatewayValue{Gateway: bpf.AddressFrom(w.SecondNode)}),
		n.SetPod(w.Pod, bpf.PodValue{IfIndex: loopback, Epoch: packettest.Epoch + 1, Flags: bpf.PodEgressSelected, MAC: packettest.PodMAC}),
	)
	if err != nil {
		return err
	}
	for flow := range flows {
		packet := packettest.Build(packettest.Ethernet{Dst: n.MAC(packettest.PodDevice), Src: packettest.PodMAC},
			packettest.IPv4{Src: w.Pod, Dst: w.Server}, packettest.UDP{Src: podPort(flow), Dst: serverPort(flow)}, packettest.Pattern(payload))
		if _, err := runOnce(n.Program("from_pod"), packet, packettest.Redirect); err != nil {
			return err
		}
	}
	return nil
}

// runOnce runs a program on a packet and insists on its verdict.
func runOnce(p *ebpf.Program, packet []byte, want packettest.Verdict) (time.Duration, error) {
	verdict, took, err := p.Benchmark(packet, 1, nil)
	if err == nil && packettest.Verdict(verdict) != want {
		err = fmt.Errorf("the program says %s, not %s", packettest.Verdict(verdict), want)
	}
	return took, err
}

// overlayTurn is how many packets a program gets before the other has its turn.
const overlayTurn = 1000

// measureOverlay measures from_overlay behind the program that gives a packet its
// tunnel key, and the empty one likewise.
func measureOverlay(n *packettest.Node, way overlayWay, flows, packets int) (cost packettest.Cost, err error) {
	if err := resetQuiet(n); err != nil {
		return cost, err
	}
	if err := way.prepare(n, flows); err != nil {
		return cost, err
	}
	inputs := make([][]byte, flows)
	for flow := range inputs {
		inputs[flow] = way.packet(n, flow)
	}
	// This leaves the tunnel key in place for what follows.
	first, err := n.Run(packettest.Input{Program: "from_overlay", Device: packettest.OverlayDevice, Packet: inputs[0], Overlay: packettest.World4.SecondNode})
	if err != nil {
		return cost, err
	}
	if first.Reasons[way.reason] != 1 {
		return cost, fmt.Errorf("the program counts %v, not %s", first.Reasons, way.reason)
	}
	turn := func(program *ebpf.Program, want packettest.Verdict, first, last int) (total time.Duration, err error) {
		if err := n.Map("inside").Put(uint32(0), program); err != nil {
			return 0, err
		}
		for i := first; i < last; i++ {
			took, err := runOnce(n.Program("tunneled"), inputs[i%flows], want)
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

// resetQuiet empties the maps, and has nothing reported: nobody reads it.
func resetQuiet(n *packettest.Node) error {
	if err := n.Reset(); err != nil {
		return err
	}
	c := n.Config
	c.Flags &^= bpf.ConfigFlowEvents
	return n.SetConfig(c)
}

// measureBackstop measures the program at netfilter's hook on a packet that has
// no mark, with a policy that does not cover its destination: with a mark it does less.
func measureBackstop(n *packettest.Node, packets int) (cost packettest.Cost, err error) {
	const accept = 1 // NF_ACCEPT
	empty, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, accept), asm.Return()},
	})
	if err != nil {
		return cost, fmt.Errorf("load empty program: %w", err)
	}
	defer empty.Close()
	w := packettest.World4
	if err := errors.Join(resetQuiet(n), n.Cover(w.Covered)); err != nil {
		return cost, err
	}
	packet := packettest.Build(packettest.Ethernet{Dst: n.MAC(packettest.PodDevice), Src: packettest.PodMAC},
		packettest.IPv4{Src: w.Pod, Dst: w.Uncovered}, packettest.UDP{Src: podPort(0), Dst: serverPort(0)}, packettest.Pattern(payload))
	run := func(p *ebpf.Program) (time.Duration, error) {
		verdict, took, err := p.Benchmark(packet, packets, nil)
		if err == nil && verdict != accept {
			err = fmt.Errorf("the verdict is %d, not accept", verdict)
		}
		return took, err
	}
	if cost.Program, err = run(n.Program("backstop")); err != nil {
		return cost, err
	}
	cost.Empty, err = run(empty)
	return cost, err
}
