// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
	"github.com/sluice-net/sluice/bpf/gc"
)

// gcDatapath is what packets cost while connections are gone through without end.
type gcDatapath struct {
	Entries  int           `json:"entries"`
	Method   gc.Method     `json:"method"` // none: nothing is gone through
	Used     gc.Method     `json:"used"`
	SameCPU  bool          `json:"sameCPU"`     // as the packets
	Passes   int           `json:"passes"`      // in all rounds
	Packet   spread        `json:"packetCPUNs"` // CPU time of a packet
	Ratio    spread        `json:"ratioToIdle"` // within rounds
	Rate     spread        `json:"packetsPerS"` // by wall time
	BurstP50 time.Duration `json:"burstP50ns"`  // wall time of [gcBurst] packets
	BurstP99 time.Duration `json:"burstP99ns"`
	BurstMax time.Duration `json:"burstMaxns"`
}

const gcIdle gc.Method = "idle"

const (
	gcBurst   = 64   // packets of a connection in a row
	gcPackets = 4096 // connections of the packets
)

// gcArm is a method, on one of two CPUs.
type gcArm struct {
	method  gc.Method
	sameCPU bool
}

// measureGCDatapath has packets of established connections go through from_pod,
// which looks each up and refreshes it, on one CPU.
func measureGCDatapath(ctx context.Context, o *gcOptions, add func(*gcResults)) error {
	spec, err := datapath.Spec()
	if err != nil {
		return err
	}
	n, err := packettest.NewNode(spec)
	if err != nil {
		return err
	}
	defer n.Close()
	collectors, err := openGC(gc.Maps{CT4Any: n.Map(ctmap.CT4Any)}, gcMethods)
	if err != nil {
		return err
	}
	defer collectors.close()
	arms := []gcArm{{method: gcIdle}}
	for _, same := range []bool{false, true} {
		if !same && runtime.NumCPU() < 2 {
			add(&gcResults{Skipped: []string{"datapath beside another CPU: there is one"}})
			continue
		}
		for _, method := range gcMethods {
			arms = append(arms, gcArm{method, same})
		}
	}
	var all []gcDatapath
	for _, entries := range []int{gcPackets * 4, int(n.Map(ctmap.CT4Any).MaxEntries()) / 2} {
		packets, err := prepareGCDatapath(n, entries)
		if err != nil {
			return err
		}
		runs := make([][]gcLoad, len(arms))
		for range o.rounds {
			for i, a := range arms {
				load, err := measureLoad(ctx, n, collectors, a, packets, o.window)
				if err != nil {
					return fmt.Errorf("%s: %w", a.method, err)
				}
				runs[i] = append(runs[i], load)
			}
		}
		for i, a := range arms {
			all = append(all, summarizeLoads(entries, a, runs[i], runs[0]))
		}
	}
	add(&gcResults{Datapath: all})
	return nil
}

// prepareGCDatapath fills the map of connections, and returns packets that belong
// to some of them.
func prepareGCDatapath(n *packettest.Node, entries int) ([][]byte, error) {
	const loopback = 1 // where packets of a test run without a context come from
	w := packettest.World4
	err := errors.Join(resetQuiet(n), n.SetPod(w.Pod, bpf.PodValue{IfIndex: loopback, Epoch: packettest.Epoch, MAC: packettest.PodMAC}))
	if err != nil {
		return nil, err
	}
	now, err := gc.Now()
	if err != nil {
		return nil, err
	}
	b := newBatch[ctmap.Key4, ctmap.Entry](n.Map(ctmap.CT4Any))
	for i := range entries - gcPackets {
		t := gcFlow(i)
		t.Protocol = unix.IPPROTO_UDP
		if err := b.put(ctmap.NewKey4(t), ctmap.Entry{Lifetime: now + gcAlive}); err != nil {
			return nil, err
		}
	}
	if err := b.flush(); err != nil {
		return nil, err
	}
	packets := make([][]byte, gcPackets)
	for flow := range packets {
		packets[flow] = packettest.Build(packettest.Ethernet{Dst: n.MAC(packettest.PodDevice), Src: packettest.PodMAC},
			packettest.IPv4{Src: w.Pod, Dst: w.Server}, packettest.UDP{Src: podPort(flow), Dst: serverPort(flow)}, packettest.Pattern(payload))
		if _, err := runOnce(n.Program("from_pod"), packets[flow], packettest.Next); err != nil {
			return nil, err
		}
	}
	return packets, nil
}

// gcLoad is what packets cost in one round.
type gcLoad struct {
	packets int
	cpu     time.Duration
	wall    time.Duration
	bursts  []time.Duration
	passes  int
	used    gc.Method
}

// measureLoad sends packets on one CPU while a method goes through the connections.
func measureLoad(ctx context.Context, n *packettest.Node, c gcCollectors, a gcArm, packets [][]byte, window time.Duration) (load gcLoad, err error) {
	var stop atomic.Bool
	passes, used, done := 0, a.method, make(chan error, 1)
	cpu := 1 % runtime.NumCPU()
	if a.sameCPU {
		cpu = 0
	}
	go onCPU(cpu, done, func() error {
		ct := n.Map(ctmap.CT4Any)
		for a.method != gcIdle && !stop.Load() {
			var run gcRun
			var err error
			if a.method == methodSeed {
				run, err = collectSeed(ct, nil, 1) // no lifetime is before that
			} else {
				run, err = collect(ctx, c[a.method], gc.Filter{Expired: true, Now: 1})
			}
			if err != nil {
				return err
			}
			passes, used = passes+1, run.method
		}
		return nil
	})
	sent := make(chan error, 1)
	go onCPU(0, sent, func() error {
		defer stop.Store(true)
		load, err = sendBursts(n.Program("from_pod"), packets, window)
		return err
	})
	err = errors.Join(<-sent, <-done)
	load.passes, load.used = passes, used
	return load, err
}

// onCPU runs a function on a thread of its own, which ends with it, on one CPU.
func onCPU(cpu int, done chan<- error, do func() error) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	err := unix.SchedSetaffinity(0, &set)
	if err == nil {
		err = do()
	}
	done <- err
}

// sendBursts runs a program on packets, in bursts by the same connection.
func sendBursts(p *ebpf.Program, packets [][]byte, window time.Duration) (load gcLoad, err error) {
	load.bursts = make([]time.Duration, 0, int(window/(5*time.Microsecond)))
	cpu, start := threadTime(), time.Now()
	for last := start; last.Sub(start) < window; {
		verdict, _, err := p.Benchmark(packets[len(load.bursts)%len(packets)], gcBurst, nil)
		if err != nil {
			return load, err
		}
		if packettest.Verdict(verdict) != packettest.Next {
			return load, fmt.Errorf("the program says %s, not %s", packettest.Verdict(verdict), packettest.Next)
		}
		now := time.Now()
		load.bursts = append(load.bursts, now.Sub(last))
		last = now
	}
	load.cpu, load.wall, load.packets = threadTime()-cpu, time.Since(start), len(load.bursts)*gcBurst
	return load, nil
}

func summarizeLoads(entries int, a gcArm, loads, idle []gcLoad) gcDatapath {
	d := gcDatapath{Entries: entries, Method: a.method, SameCPU: a.sameCPU}
	var packet, ratio, rate []float64
	var bursts []time.Duration
	for round, l := range loads {
		ns := func(l gcLoad) float64 { return float64(l.cpu) / float64(l.packets) }
		packet, ratio = append(packet, ns(l)), append(ratio, ns(l)/ns(idle[round]))
		rate = append(rate, float64(l.packets)/l.wall.Seconds())
		bursts = append(bursts, l.bursts...)
		d.Passes, d.Used = d.Passes+l.passes, l.used
	}
	slices.Sort(bursts)
	d.Packet, d.Ratio, d.Rate = spreadOf(packet), spreadOf(ratio), spreadOf(rate)
	d.BurstP50, d.BurstP99, d.BurstMax = bursts[len(bursts)/2], bursts[len(bursts)*99/100], bursts[len(bursts)-1]
	return d
}
