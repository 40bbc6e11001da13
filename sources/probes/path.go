// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

const (
	// How often a node is probed that has packets of this node's flows, and one that has none.
	// Flows that get nothing back are noticed at once, so these are for all else. All nodes may have
	// flows by one gateway: in a large cluster it is probed less often, by this much for each node.
	probeActive  = time.Second
	probeIdle    = 5 * time.Second
	probePerNode = time.Millisecond

	// activeFor is for how long a node has flows after the last packet to it.
	activeFor = 10 * time.Second

	// For how long a lost node has to answer until it is healthy: this much after the first loss,
	// and twice as long after each one that follows, up to the maximum.
	holdMin = time.Second
	holdMax = time.Minute

	// forgiveAfter is how long a node is healthy until its losses are forgotten.
	forgiveAfter = 10 * time.Minute
)

// settings are those of flags.
type settings struct {
	interval time.Duration // between probes of a node in doubt
	failures int           // probes in succession that are not answered until it is lost
}

// tick is how often paths are looked at: often enough that a gateway is probed soon after packets
// of flows got nothing back, and that a probe has a third of an interval to be answered.
func (s settings) tick() time.Duration { return s.interval / 3 }

// asked is a probe that is not answered.
type asked struct {
	nonce uint64
	at    time.Duration
}

// path is what this node knows of the path to another one. Its times are those of the kernel's
// CLOCK_MONOTONIC, as in [bpf.PathValue].
type path struct {
	settings
	target tables.ProbeTarget

	row      *tables.GatewayHealth
	since    time.Duration // when its state began
	heard    bool          // it has answered in this state
	asked    []asked       // since the last answer
	sent     time.Duration // the last probe
	life     time.Duration // the last moment when the path is known to have worked
	answer   time.Duration // the same, by answers alone
	missed   time.Duration // when the last probe was sent that was not answered, and a later one was
	forgot   time.Duration // when probes under way were given up
	trip     time.Duration // for how long answers were on their way of late, at most
	flowSent time.Duration // the last packet of a flow to it
	flowSeen time.Duration // the last packet that came from it
}

// newPath returns the path to a node. It has answered probes before, of a former run of the agent,
// if the kernel says so: then silence means something from the first probe on.
func newPath(s settings, target tables.ProbeTarget, noted bpf.PathValue, now time.Duration,
	at time.Time) *path {
	p := &path{settings: s, target: target, since: now, forgot: now}
	p.row = &tables.GatewayHealth{
		Node: target.Node, Addr: target.Addr, Witness: target.Witness,
		State: tables.PathUnprobed, Since: at, Reason: "it has not answered a probe yet",
	}
	if noted.Answered != 0 {
		p.row.State, p.row.Reason = tables.PathHealthy, ""
	}
	return p
}

// retarget takes in what is new of a target, and reports whether the row is new by that.
func (p *path) retarget(target tables.ProbeTarget) bool {
	p.target = target
	if p.row.Witness == target.Witness {
		return false
	}
	row := *p.row
	row.Witness = target.Witness
	p.row = &row
	return true
}

// answered notes an answer, and reports whether there was a probe with its nonce. came is when it
// did, 0 if that is not known.
func (p *path) answered(nonce uint64, came time.Duration) bool {
	i := slices.IndexFunc(p.asked, func(a asked) bool { return a.nonce == nonce })
	if i < 0 {
		return false
	}
	// The path worked when the probe was sent, at least.
	at := p.asked[i].at
	p.life, p.answer = max(p.life, at), max(p.answer, at)
	if i > 0 {
		p.missed = p.asked[i-1].at
	}
	if came != 0 {
		p.trip = max(came-at, p.trip*7/8)
	}
	p.asked = p.asked[i+1:]
	p.heard = true
	return true
}

// note takes what the programs have noted.
func (p *path) note(v bpf.PathValue) {
	p.life = max(p.life, v.Seen)
	p.flowSent, p.flowSeen = max(p.flowSent, v.Sent), max(p.flowSeen, v.Seen)
}

// forget gives up probes under way: what became of them means nothing.
func (p *path) forget(now time.Duration) {
	p.asked = nil
	p.forgot = now
}

// patience is for how long an answer may be on its way. The last probe that makes a node lost has
// only this long to be answered; those before it have had an interval each.
func (p *path) patience() time.Duration { return max(p.interval/3, min(2*p.trip, probeActive)) }

// unanswered returns the last probes that were sent after a moment, and are old enough to have been
// answered, as many as make a node lost. ok says that there are as many.
func (p *path) unanswered(after, now time.Duration) (last []asked, ok bool) {
	for _, a := range p.asked {
		if a.at > after && now-a.at >= p.patience() {
			last = append(last, a)
		}
	}
	return last[max(0, len(last)-p.failures):], len(last) >= p.failures
}

// silent reports whether a node does not answer, and when the first of the probes was sent that say
// so. Packets of flows are signs of life, but a host on the path could repeat them: they do not
// replace answers for long.
func (p *path) silent(now time.Duration) (since time.Duration, silent bool) {
	last, silent := p.unanswered(p.life, now)
	if !silent && now-max(p.answer, p.forgot) >= time.Duration(p.failures)*probeActive {
		last, silent = p.unanswered(p.answer, now)
	}
	if !silent {
		return 0, false
	}
	return last[0].at, true
}

// doubt reports whether a probe was not answered when the next one may be sent, of a node that has
// answered before and is not known to be lost.
func (p *path) doubt(now time.Duration) bool {
	if p.row.State == tables.PathUnprobed || p.row.State == tables.PathLost {
		return false
	}
	wait := max(p.interval, p.patience())
	return slices.ContainsFunc(p.asked, func(a asked) bool {
		return a.at > p.answer && now-a.at >= wait
	})
}

// worked reports whether the path worked from a moment on, both ways and without interruption: a
// probe that was sent after it was answered, and none was skipped.
func (p *path) worked(since time.Duration) bool { return p.answer > since && p.missed < since }

// activeEvery is how often a node with flows is probed in a cluster of so many nodes.
func activeEvery(nodes int) time.Duration {
	return min(max(probeActive, time.Duration(nodes)*probePerNode), probeIdle)
}

// due reports whether to send a probe now, if there is no doubt about any path. The cluster has so
// many nodes.
func (p *path) due(now time.Duration, nodes int) bool {
	passed := now - p.sent
	switch p.row.State {
	case tables.PathLost, tables.PathUnprobed:
		return p.sent == 0 || passed >= probeActive
	case tables.PathRecovering, tables.PathUnreachable:
		return passed >= p.interval
	}
	if p.target.Voted {
		return passed >= p.interval
	}
	every := probeIdle
	if p.flowSent != 0 && now-p.flowSent < activeFor {
		every = activeEvery(nodes)
	}
	if p.flowSent > p.life && now-p.life >= p.tick() {
		// A packet got nothing back yet. Those of some flows never do.
		every = 4 * p.interval
		if now-p.flowSeen < probeActive {
			every = p.interval
		}
	}
	return p.sent == 0 || passed >= every
}

// probe notes a probe that is sent now.
func (p *path) probe(nonce uint64, now time.Duration) {
	const most = 64 // under way
	if len(p.asked) == most {
		p.asked = p.asked[1:]
	}
	p.asked = append(p.asked, asked{nonce, now})
	p.sent = now
}

// judge brings the state up to date, and reports whether it has changed. othersWorked reports
// whether the path to any other node worked from a moment on.
func (p *path) judge(
	now time.Duration, at time.Time, othersWorked func(since time.Duration) bool,
) bool {
	state, reason := p.row.State, ""
	since, silent := p.silent(now)
	switch {
	case silent && (state == tables.PathLost || state == tables.PathUnprobed):
		return false
	case silent && state == tables.PathRecovering:
		state, reason = tables.PathLost, "it stopped answering again"
	case silent && othersWorked(since):
		state = tables.PathLost
		reason = fmt.Sprintf("%d probes were not answered, those of other nodes were", p.failures)
	case silent:
		state = tables.PathUnreachable
		reason = "no node answers: the network of this node may be down"
	case state == tables.PathLost && p.heard:
		state = tables.PathRecovering
		reason = "it answers again, and has to for " + p.hold().String()
	case state == tables.PathRecovering && now-p.since >= p.hold():
		state = tables.PathHealthy
	case (state == tables.PathUnprobed || state == tables.PathUnreachable) && p.heard:
		state = tables.PathHealthy
	case state == tables.PathHealthy && p.row.Losses > 0 && now-p.since >= forgiveAfter:
		forgiven := *p.row
		forgiven.Losses = 0
		p.row = &forgiven
		return true
	}
	if state == p.row.State {
		return false
	}
	p.enter(state, reason, now, at)
	return true
}

// enter begins a state.
func (p *path) enter(state tables.PathState, reason string, now time.Duration, at time.Time) {
	row := *p.row
	row.History = append(slices.Clone(row.History),
		tables.PathChange{State: row.State, Since: row.Since})
	row.History = row.History[max(0, len(row.History)-tables.MaxPathHistory):]
	row.State, row.Reason, row.Since = state, reason, at
	if state == tables.PathLost {
		row.Losses++
	}
	p.row, p.since, p.heard = &row, now, false
}

// hold is for how long the node has to answer after its last loss.
func (p *path) hold() time.Duration {
	hold := holdMin
	for range p.row.Losses - 1 {
		hold = min(2*hold, holdMax)
	}
	return hold
}
