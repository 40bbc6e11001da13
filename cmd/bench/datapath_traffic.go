// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/lab"
)

// trafficResult is what one arm of a comparison came to.
type trafficResult struct {
	Path    string            `json:"path"`
	Measure string            `json:"measure"`
	Arm     string            `json:"arm"`
	Unit    string            `json:"unit"`
	Rounds  []float64         `json:"rounds"`
	Rate    spread            `json:"rate"`
	P50     time.Duration     `json:"p50ns,omitempty"` // medians of the rounds'
	P99     time.Duration     `json:"p99ns,omitempty"`
	Sent    float64           `json:"sent,omitempty"` // datagrams a second, median
	Busy    float64           `json:"cpuBusy"`
	Source  netip.Addr        `json:"source"`            // that the server saw
	Ratios  map[string]spread `json:"ratios,omitempty"`  // of Sluice's rate to another arm's, of each round
	Counted map[string]uint64 `json:"counted"`           // in all rounds, where it went
	Dropped map[string]uint64 `json:"dropped,omitempty"` // by programs, in all rounds
}

// armSluice is the arm that is compared with the others.
const armSluice = "Sluice"

// arm is one way for the same traffic.
type arm struct {
	name     string
	cluster  *labCluster
	from     *lab.Namespace
	to       netip.Addr
	sink     *sink
	source   netip.Addr // that the server has to see
	evidence evidence   // what has to grow
}

// comparison is traffic between the same places on several ways.
type comparison struct {
	path string
	arms []arm
}

// measureTraffic builds a cluster with agents and one without, and measures each
// kind of traffic on all of its ways by turns. It shows results as they come.
func measureTraffic(ctx context.Context, o *datapathOptions, show func([]trafficResult)) (all []trafficResult, err error) {
	plain, err := newLabCluster(ctx, false)
	if err != nil {
		return nil, err
	}
	defer plain.close()
	sluice, err := newLabCluster(ctx, true)
	if err != nil {
		return nil, err
	}
	defer sluice.close()
	for _, c := range comparisons(plain, sluice) {
		for _, m := range workloads {
			results, err := compare(ctx, c, m, o)
			if err != nil {
				return all, err
			}
			show(results)
			all = append(all, results...)
		}
	}
	return all, nil
}

func comparisons(plain, sluice *labCluster) []comparison {
	same := func(name string, c *labCluster) arm {
		n := c.Nodes[0]
		way := evidence{}.in(n, c.client.HostDevice).out(n, c.near.HostDevice)
		return arm{name, c, c.client.Namespace, c.near.IPv4, c.nearSink, c.client.IPv4, way}
	}
	across := func(name string, c *labCluster) arm {
		way := evidence{}.out(c.Nodes[0], lab.UnderlayDevice).in(c.Nodes[1], lab.UnderlayDevice)
		return arm{name, c, c.client.Namespace, c.far.IPv4, c.farSink, c.client.IPv4, way}
	}
	const without = "no programs"
	withSame, withAcross := same(armSluice, sluice), across(armSluice, sluice)
	for _, a := range []*arm{&withSame, &withAcross} {
		a.evidence = a.evidence.says(sluice.Nodes[0], bpf.ReasonPassed, false)
	}
	withAcross.evidence = withAcross.evidence.says(sluice.Nodes[1], bpf.ReasonPassed, false)
	return []comparison{
		{"pod to pod, same node", []arm{same(without, plain), withSame}},
		{"pod to pod, across nodes", []arm{across(without, plain), withAcross}},
		{"pod to a server outside", outwardArms(plain, sluice)},
	}
}

// outwardArms are the ways out: by the pod's own node, which translates as CNIs do;
// by a gateway of the kernel's; by one of Sluice's.
func outwardArms(plain, sluice *labCluster) []arm {
	out := func(name string, c *labCluster, from *lab.Pod, source netip.Addr, way evidence) arm {
		return arm{name, c, from.Namespace, lab.ServerIPv4, c.worldSink, source, way}
	}
	p1, p2, s1, s2 := plain.Nodes[0], plain.Nodes[1], sluice.Nodes[0], sluice.Nodes[1]
	return []arm{
		out("nftables at pod's node", plain, plain.outward, p1.OutsideIPv4, evidence{}.out(p1, p1.EgressDevice())),
		out("nftables at gateway", plain, plain.routed, p2.OutsideIPv4,
			evidence{}.out(p1, kernelDevice).in(p2, kernelDevice).out(p2, p2.EgressDevice())),
		out(armSluice, sluice, sluice.outward, s2.EgressIPv4,
			evidence{}.says(s1, bpf.ReasonToGateway, false).says(s2, bpf.ReasonTranslated, false).out(s2, s2.EgressDevice()).
				says(s2, bpf.ReasonReplyOverlay, true).says(s1, bpf.ReasonReplyLocal, true)),
	}
}

// compare measures all arms in each round.
func compare(ctx context.Context, c comparison, m workload, o *datapathOptions) ([]trafficResult, error) {
	samples := make([][]sample, len(c.arms))
	results := make([]trafficResult, len(c.arms))
	for i, a := range c.arms {
		results[i] = trafficResult{Path: c.path, Measure: m.name, Arm: a.name, Unit: m.unit, Source: a.source,
			Counted: map[string]uint64{}, Dropped: map[string]uint64{}}
	}
	for range o.rounds {
		for i, a := range c.arms {
			s, err := a.run(ctx, m, o.window, &results[i])
			if err != nil {
				return nil, fmt.Errorf("%s, %s, %s: %w", c.path, a.name, m.name, err)
			}
			samples[i] = append(samples[i], s)
		}
	}
	for i := range results {
		results[i].take(samples[i])
		if c.arms[i].name == armSluice {
			results[i].Ratios = ratios(c.arms, samples, i)
		}
	}
	return results, nil
}

// run measures an arm once, and insists that the traffic took its way.
func (a *arm) run(ctx context.Context, m workload, window time.Duration, r *trafficResult) (sample, error) {
	a.sink.takeSources()
	before, err := a.evidence.read()
	if err != nil {
		return sample{}, err
	}
	dropped, err := a.cluster.drops()
	if err != nil {
		return sample{}, err
	}
	s, err := m.run(ctx, a.from, a.to, a.sink, window)
	if err != nil {
		return sample{}, err
	}
	if sources := a.sink.takeSources(); len(sources) != 1 || sources[0] != a.source {
		return sample{}, wrongSource(a.source, sources)
	}
	after, err := a.evidence.read()
	if err != nil {
		return sample{}, err
	}
	for i, c := range a.evidence {
		grown := after[i] - before[i]
		if !c.back && grown < s.packets || c.back && m.answered && grown == 0 {
			return sample{}, fmt.Errorf("%w: %s counts %d packets, the server %d", errPath, c.name, grown, s.packets)
		}
		r.Counted[c.name] += grown
	}
	droppedSince, err := a.cluster.drops()
	if err != nil {
		return sample{}, err
	}
	for reason, count := range droppedSince {
		if count > dropped[reason] {
			r.Dropped[reason.String()] += count - dropped[reason]
		}
	}
	return s, nil
}

// take summarizes the rounds.
func (r *trafficResult) take(samples []sample) {
	var busy, sent, p50, p99 []float64
	for _, s := range samples {
		r.Rounds = append(r.Rounds, s.rate)
		busy, sent = append(busy, s.busy), append(sent, s.sent)
		p50, p99 = append(p50, float64(s.p50)), append(p99, float64(s.p99))
	}
	r.Rate, r.Busy, r.Sent = spreadOf(r.Rounds), spreadOf(busy).Median, spreadOf(sent).Median
	r.P50, r.P99 = time.Duration(spreadOf(p50).Median), time.Duration(spreadOf(p99).Median)
}

// ratios are those of an arm's rate to each other arm's, taken within rounds: what
// changes on the machine from round to round is in both.
func ratios(arms []arm, samples [][]sample, of int) map[string]spread {
	all := map[string]spread{}
	for i, a := range arms {
		if i == of {
			continue
		}
		var rounds []float64
		for round := range samples[i] {
			rounds = append(rounds, samples[of][round].rate/samples[i][round].rate)
		}
		all[a.name] = spreadOf(rounds)
	}
	return all
}
