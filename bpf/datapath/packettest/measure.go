// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
)

// loopback is the device that test runs without a context have packets come from.
const loopback = 1

// Measurement is one program and one way through it.
type Measurement struct {
	Name    string
	Program string
	Flows   int // different packets, in turn

	// Repeatable says that the program leaves the packet as it is, so that one
	// run can be repeated by the kernel without a system call in between.
	Repeatable bool

	// Fresh says that each flow is measured once, with its first packet.
	Fresh bool

	// Told says that the program tells of each packet. The caller has to read that.
	Told bool

	want    Verdict // of every packet
	packet  func(n *Node, flow int) []byte
	prepare func(n *Node) error
}

// Measurements are all that are made, for a number of flows beside the one hot one.
func Measurements(flows int) []Measurement {
	w := World4
	pod := func(n *Node, flow int) []byte {
		return Build(Ethernet{Dst: n.MAC(PodDevice), Src: PodMAC}, IPv4{Src: w.Pod, Dst: w.Server},
			UDP{Src: uint16(10000 + flow%50000), Dst: uint16(1000 + flow/50000)}, Pattern(100))
	}
	open := func(n *Node, flow int) []byte {
		return Build(Ethernet{Dst: n.MAC(PodDevice), Src: PodMAC}, IPv4{Src: w.Pod, Dst: w.Uncovered},
			TCP{Src: uint16(10000 + flow%50000), Dst: uint16(1000 + flow/50000), Flags: SYN})
	}
	reply := func(n *Node, flow int) []byte {
		return Build(Ethernet{Dst: n.MAC(EgressDevice), Src: RouterMAC},
			IPv4{Src: w.Server, Dst: w.Egress},
			UDP{Src: uint16(1000 + flow/50000), Dst: uint16(10000 + flow%50000)}, Pattern(100))
	}
	host := func(n *Node, flow int) []byte {
		return Build(Ethernet{Src: n.MAC(EgressDevice), Dst: RouterMAC},
			IPv4{Src: w.NodeIP, Dst: w.Server},
			UDP{Src: uint16(10000 + flow%50000), Dst: uint16(1000 + flow/50000)}, Pattern(100))
	}
	arrival := func(n *Node, flow int) []byte {
		return Build(Ethernet{Dst: n.MAC(EgressDevice), Src: RouterMAC},
			IPv4{Src: w.Server, Dst: w.NodeIP},
			UDP{Src: uint16(1000 + flow/50000), Dst: uint16(10000 + flow%50000)}, Pattern(100))
	}
	none := func(n *Node) error { return nil }
	remote := func(n *Node) error {
		return errors.Join(
			n.Select(w, bpf.GatewayValue{Gateway: bpf.AddressFrom(w.SecondNode)}), n.podAt(w.Pod, loopback),
		)
	}
	subject := func(n *Node) error { return n.underPolicy(w) }
	forbidden := func(n *Node) error { return errors.Join(n.underPolicy(w), n.forbid()) }
	here := func(n *Node) error {
		return errors.Join(n.Select(w, n.Here(w.Egress)), n.podAt(w.Pod, loopback))
	}
	translated := func(n *Node) error {
		if err := here(n); err != nil {
			return err
		}
		return n.once("from_pod", flows, pod, Redirect)
	}
	var all []Measurement
	for _, m := range []Measurement{
		{Name: "pod/established", want: Next, Program: "from_pod", Repeatable: true, packet: pod, prepare: none},
		{Name: "pod/established-under-policy", want: Next, Program: "from_pod", Repeatable: true, packet: pod, prepare: subject},
		{Name: "pod/denied-by-policy", want: Drop, Program: "from_pod", Repeatable: true, Told: true, packet: pod, prepare: forbidden},
		{Name: "pod/established-by-gateway", want: Redirect, Program: "from_pod", Repeatable: true, packet: pod, prepare: remote},
		{Name: "pod/translated-here", want: Redirect, Program: "from_pod", packet: pod, prepare: here},
		{Name: "pod/reply", want: Next, Program: "to_pod", Repeatable: true, packet: toPodPacket, prepare: func(n *Node) error { return n.once("from_pod", flows, pod, Next) }},
		{Name: "netdev/reply", want: Redirect, Program: "from_netdev", packet: reply, prepare: translated},
		{Name: "netdev/arrival-for-the-host", want: Next, Program: "from_netdev", Repeatable: true, packet: arrival, prepare: none},
		{Name: "netdev/unrelated-of-the-host", want: Next, Program: "to_netdev", Repeatable: true, packet: host, prepare: none},
	} {
		m.Flows = 1
		all = append(all, m)
		m.Flows, m.Repeatable = flows, false
		all = append(all, m)
	}
	return append(all,
		Measurement{
			Name: "pod/new", Fresh: true, want: Next, Program: "from_pod", Flows: flows, packet: open,
			prepare: none,
		},
		Measurement{
			Name: "pod/new-under-policy", Fresh: true, want: Next, Program: "from_pod", Flows: flows,
			packet: open, prepare: subject,
		},
		Measurement{
			Name: "pod/new-translated-here", Fresh: true, want: Redirect, Program: "from_pod", Flows: flows,
			packet: pod, prepare: here,
		})
}

// Numbers of measurements: of the pod, and of all that it sends to.
const (
	measuredSubject = 5
	measuredRuleset = 15
	measuredPeer    = 6
	measuredSet     = 25
)

// underPolicy has policies select the pod, that allow it everything by a rule. Their maps
// have as many verdicts for others as a large cluster's.
func (n *Node) underPolicy(w Addresses) error {
	const others = 10_000
	pod := n.LocalPod(measuredSubject)
	pod.IfIndex = loopback
	key := bpf.PolicyKey{Ruleset: measuredRuleset, Direction: bpf.DirectionEgress}
	err := errors.Join(
		n.SetSubject(measuredSubject, measuredRuleset),
		n.SetPod(w.Pod, pod),
		n.SetPeer(netip.PrefixFrom(w.Pod, 0).Masked(), measuredPeer, 0),
		n.SetPolicy(key, measuredSet+1),
		n.SetVerdict(bpf.VerdictKeyOf(measuredSet+1, 0, 0, 0), bpf.VerdictValue{
			Deny: 1, Default: 1, Cookie: 9,
		}),
		n.SetPolicy(measuredKey(), measuredSet),
		n.SetVerdict(bpf.VerdictKeyOf(measuredSet, 0, 0, 0), bpf.VerdictValue{Cookie: 7}),
	)
	for i := range uint32(others) {
		key.Ruleset, key.Class = measuredRuleset+1+i%100, i/100
		err = errors.Join(err, n.SetPolicy(key, measuredSet+2+i),
			n.SetVerdict(bpf.VerdictKeyOf(measuredSet+2+i, TCPProtocol, 443, 16), bpf.VerdictValue{
				Cookie: 8,
			}))
	}
	return err
}

func measuredKey() bpf.PolicyKey {
	return bpf.PolicyKey{
		Ruleset: measuredRuleset, Class: measuredPeer, Direction: bpf.DirectionEgress,
	}
}

// forbid takes away what underPolicy allows.
func (n *Node) forbid() error { return n.RemovePolicy(measuredKey()) }

func toPodPacket(n *Node, flow int) []byte {
	return Build(Ethernet{Src: n.MAC(PodDevice), Dst: PodMAC},
		IPv4{Src: World4.Server, Dst: World4.Pod},
		UDP{Src: uint16(1000 + flow/50000), Dst: uint16(10000 + flow%50000)}, Pattern(100))
}

// once runs a program on the packet of each flow.
func (n *Node) once(
	program string, flows int, packet func(n *Node, flow int) []byte, want Verdict,
) error {
	for flow := range flows {
		verdict, _, err := n.Program(program).Benchmark(packet(n, flow), 1, nil)
		if err != nil {
			return fmt.Errorf("run %s: %w", program, err)
		}
		if Verdict(verdict) != want {
			return fmt.Errorf("run %s: %s, not %s", program, Verdict(verdict), want)
		}
	}
	return nil
}

// Cost is what a packet costs, by itself and in the empty program.
type Cost struct{ Program, Empty time.Duration }

// Over returns what the program costs over the empty one.
func (c Cost) Over() time.Duration { return c.Program - c.Empty }

// Measure runs a program on so many packets, and the empty one on as many by turns.
func (n *Node) Measure(m Measurement, packets int) (Cost, error) {
	if err := n.prepareMeasurement(m); err != nil {
		return Cost{}, err
	}
	inputs := make([][]byte, m.Flows)
	for flow := range inputs {
		inputs[flow] = m.packet(n, flow)
	}
	if !m.Fresh {
		if err := n.once(m.Program, m.Flows, m.packet, m.want); err != nil {
			return Cost{}, err
		}
	}
	if m.Repeatable {
		return n.measureRepeated(m, inputs[0], packets)
	}
	var total Cost
	for i := range packets {
		if m.Told && i%toldTurn == 0 {
			if _, err := n.Events(); err != nil {
				return Cost{}, err
			}
		}
		program, err := runOnce(n.Program(m.Program), inputs[i%len(inputs)])
		if err != nil {
			return Cost{}, err
		}
		empty, err := runOnce(n.Empty(), inputs[i%len(inputs)])
		if err != nil {
			return Cost{}, err
		}
		total.Program += program
		total.Empty += empty
	}
	return Cost{total.Program / time.Duration(packets), total.Empty / time.Duration(packets)}, nil
}

func runOnce(p *ebpf.Program, packet []byte) (time.Duration, error) {
	_, took, err := p.Benchmark(packet, 1, nil)
	return took, err
}

// MeasureTunneled runs a program on frames that come by a tunnel, each from the node with the same
// index, in turn, and the empty one on as many. The program has to redirect each: the kernel does
// not do so in a run like this.
func (n *Node) MeasureTunneled(
	program string, nodes []netip.Addr, frames [][]byte, packets int,
) (Cost, error) {
	var total Cost
	for i := range packets {
		at := i % len(frames)
		for _, inside := range []struct {
			name string
			took *time.Duration
			want Verdict
		}{{program, &total.Program, Redirect}, {"empty", &total.Empty, Next}} {
			in := Input{Overlay: nodes[at]}
			tunneled, err := n.tunneled(in, n.Program(inside.name))
			if err != nil {
				return Cost{}, err
			}
			verdict, took, err := tunneled.Benchmark(frames[at], 1, nil)
			if err != nil {
				return Cost{}, err
			}
			if Verdict(verdict) != inside.want {
				return Cost{}, fmt.Errorf("run %s on a frame from %s: %s, not %s",
					inside.name, nodes[at], Verdict(verdict), inside.want)
			}
			*inside.took += took
		}
	}
	return Cost{total.Program / time.Duration(packets), total.Empty / time.Duration(packets)}, nil
}

// toldTurn is after how many packets is read what is told of them: the buffer has room
// for more.
const toldTurn = 4096

// measureRepeated has the kernel repeat the run. The durations are of one.
func (n *Node) measureRepeated(m Measurement, packet []byte, packets int) (Cost, error) {
	var total Cost
	turn := packets
	if m.Told {
		turn = toldTurn
	}
	for done := 0; done < packets; done += turn {
		runs := min(turn, packets-done)
		if _, err := n.Events(); err != nil {
			return Cost{}, err
		}
		_, program, err := n.Program(m.Program).Benchmark(packet, runs, nil)
		if err != nil {
			return Cost{}, err
		}
		_, empty, err := n.Empty().Benchmark(packet, runs, nil)
		if err != nil {
			return Cost{}, err
		}
		total.Program += program * time.Duration(runs)
		total.Empty += empty * time.Duration(runs)
	}
	return Cost{total.Program / time.Duration(packets), total.Empty / time.Duration(packets)}, nil
}

// prepareMeasurement writes the contents of the maps. Without a context packets
// come from the loopback device: so that is the pod's.
func (n *Node) prepareMeasurement(m Measurement) error {
	if err := n.Reset(); err != nil {
		return err
	}
	c := n.Config
	c.Flags &^= bpf.ConfigFlowEvents
	if err := n.SetConfig(c); err != nil {
		return err
	}
	if err := n.podAt(World4.Pod, loopback); err != nil {
		return err
	}
	return m.prepare(n)
}

func (n *Node) podAt(a netip.Addr, ifindex uint32) error {
	var v bpf.PodValue
	key := bpf.PodKey{Addr: bpf.AddressFrom(a)}
	if err := n.Map("sluice_pods").Lookup(&key, &v); err != nil {
		return err
	}
	v.IfIndex = ifindex
	return n.SetPod(a, v)
}
