// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/sluice-net/sluice/bpf/gc"
)

// busyAtMost is the share of time that passes for addresses that go may take.
const busyAtMost = 0.1

// run makes passes until the context ends.
func (r *Runner) run(ctx context.Context, health cell.Health) error {
	defer close(r.ended)
	r.reporter.health = health
	if !r.loaded() {
		health.OK("No programs are loaded: there are no connections")
		r.refuse(ctx)
		return nil
	}
	l := &loop{Runner: r, pollAt: time.Now()}
	defer l.close()
	l.run(ctx)
	return nil
}

// refuse answers requests while there is nothing to make a pass through.
func (r *Runner) refuse(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-r.requests:
			q.reply <- reply{err: ErrNoMaps}
		case <-r.released.wake:
			for more := true; more; {
				_, more = r.released.take()
			}
		}
	}
}

// loop is what makes the passes.
type loop struct {
	*Runner
	sets    []*set // none while they cannot be opened
	unasked bool   // passes are made unasked

	// When to do what; zero is never. next: at the earliest.
	nextPorts, nextRelease                     time.Time
	pollAt, openAt, lookAt, portsAt, releaseAt time.Time

	portsFor string // reason of the pass at portsAt

	unseen error // of the last look
}

func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	enabled := l.enabled
	for {
		timer.Reset(time.Until(l.due()))
		select {
		case <-ctx.Done():
			return
		case <-enabled:
			enabled, l.unasked, l.pollAt = nil, true, time.Now()
		case q := <-l.requests:
			q.reply <- l.serve(ctx, q)
		case reason := <-l.ports:
			if l.portsAt.IsZero() {
				l.portsAt, l.portsFor = latest(time.Now(), l.nextPorts), reason
			}
			if reason == ReasonPortsExhausted {
				l.portsFor = reason
			}
		case <-l.released.wake:
			if l.releaseAt.IsZero() {
				l.releaseAt = latest(time.Now().Add(l.timing.Coalesce), l.nextRelease)
			}
		case <-timer.C:
		}
		l.work(ctx)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// due returns when there is something to do.
func (l *loop) due() time.Time {
	due := l.pollAt
	for _, at := range []time.Time{l.portsAt, l.releaseAt} {
		if l.unasked && !at.IsZero() && at.Before(due) {
			due = at
		}
	}
	return due
}

// work does what is due.
func (l *loop) work(ctx context.Context) {
	is := func(at time.Time) bool { return l.unasked && !at.IsZero() && !time.Now().Before(at) }
	if is(l.portsAt) {
		l.portsAt, l.nextPorts = time.Time{}, time.Now().Add(l.timing.Ports)
		l.everywhere(ctx, l.portsFor, func(o *observation) gc.Filter {
			f := usual(o)
			if l.portsFor == ReasonPortsExhausted {
				f.ReplyGrace = 0 // it takes ports
			}
			return f
		})
	}
	if is(l.releaseAt) {
		l.removeReleased(ctx)
	}
	if !time.Now().Before(l.pollAt) {
		l.poll(ctx)
		l.pollAt = time.Now().Add(l.timing.Poll)
	}
}

// opened reports whether there are sets of maps, which it opens if it is time to.
func (l *loop) opened() bool {
	if len(l.sets) > 0 {
		return true
	}
	if time.Now().Before(l.openAt) {
		return false
	}
	global, err := l.open()
	if err != nil {
		l.openAt = time.Now().Add(minInterval)
		l.reporter.health.Degraded("The maps of connections cannot be gone through", err)
		return false
	}
	l.sets = []*set{global}
	return true
}

// look has the sets of clusters be those that there are now, and shows the maps
// of fragments.
func (l *loop) look() {
	before := l.sets
	sets, err := l.clusters(before[1:])
	l.sets = append([]*set{before[0]}, sets...)
	hideErr := l.reporter.hide(before, l.sets)
	rows, countErr := l.fragments()
	if countErr == nil {
		countErr = l.reporter.maps(rows...)
	}
	l.unseen = errors.Join(err, hideErr, countErr)
}

// poll looks at all sets, and makes the passes that are worth it.
func (l *loop) poll(ctx context.Context) {
	if !l.opened() {
		return
	}
	if now := time.Now(); !now.Before(l.lookAt) {
		l.look()
		l.lookAt = now.Add(l.timing.Look)
	}
	for _, s := range l.sets {
		o, err := l.observe(s)
		if err != nil || !l.unasked {
			continue // the next poll counts again
		}
		if reason := s.schedule.decide(o); reason != "" {
			l.pass(ctx, s, order{reason, collect(usual(o))}) // the report has the error
		}
	}
	l.reporter.reportHealth(l.sets, l.unasked, l.unseen)
}

// usual returns the filter of passes that are not requested.
func usual(o *observation) gc.Filter {
	return gc.Filter{Expired: true, Orphans: true, ReplyGrace: o.grace()}
}

// observe counts the entries of a set, and shows the counts.
func (l *loop) observe(s *set) (*observation, error) {
	o := &observation{now: time.Now(), sizes: s.sizes, packets: l.packets}
	if o.counts, s.uncounted = s.collector.Count(); s.uncounted != nil {
		s.uncounted = fmt.Errorf("count entries of the %s maps: %w", s.name, s.uncounted)
		return o, s.uncounted
	}
	s.short = shortOf(s, o)
	// An error here keeps no pass from being made.
	if err := l.reporter.show(s, o.counts.Entries); err != nil {
		s.uncounted = fmt.Errorf("show how full the %s maps are: %w", s.name, err)
	}
	return o, nil
}

// pass makes one pass through a set.
func (l *loop) pass(ctx context.Context, s *set, o order) ([]gc.Pass, error) {
	started, lost := time.Now(), l.observers.lost.Load()
	done, err := o.do(ctx, s.collector, &l.observers)
	after, countErr := l.observe(s)
	if done.all {
		s.schedule.made(o.reason, done.passes, errors.Join(err, countErr), after)
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			s.failure = err
		}
	}
	l.reporter.passed(&report{
		set: s, reason: o.reason, started: started, ended: after.now,
		passes: done.passes, lost: l.observers.lost.Load() - lost, err: err,
	})
	return done.passes, err
}

// everywhere makes a pass through each set that may have any entries. It reports
// whether all went well.
func (l *loop) everywhere(ctx context.Context, reason string, filter func(*observation) gc.Filter) bool {
	if !l.opened() {
		return false
	}
	well := true
	for _, s := range l.sets {
		o, err := l.observe(s)
		if err == nil && !o.empty() {
			_, err = l.pass(ctx, s, order{reason, collect(filter(o))})
		}
		well = well && err == nil
	}
	l.reporter.reportHealth(l.sets, l.unasked, l.unseen)
	return well
}

// removeReleased removes what has an address that no pod has any more. An address that
// another endpoint has by now is left alone: its connections are not told apart
// from those before.
func (l *loop) removeReleased(ctx context.Context) {
	l.releaseAt = time.Time{}
	all, more := l.released.take()
	addrs := slices.DeleteFunc(slices.Clone(all), l.owned)
	slices.SortFunc(addrs, netip.Addr.Compare)
	started, well := time.Now(), true
	if len(addrs) > 0 {
		well = l.everywhere(ctx, ReasonEndpointsGone, func(o *observation) gc.Filter {
			f := usual(o)
			f.Addrs = addrs
			return f
		})
	}
	ended := time.Now()
	l.nextRelease = ended.Add(time.Duration(float64(ended.Sub(started)) * (1/busyAtMost - 1)))
	if !well {
		l.nextRelease = latest(l.nextRelease, ended.Add(minInterval))
		l.released.add(addrs...)
	} else {
		l.reporter.released(len(addrs), len(all)-len(addrs))
	}
	if more {
		l.releaseAt = l.nextRelease
	}
}

// serve makes the passes that are requested.
func (l *loop) serve(ctx context.Context, q *request) (answer reply) {
	own, cancel := context.WithCancel(q.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	l.openAt = time.Time{}
	if !l.opened() {
		return reply{err: errors.New("the maps of connections cannot be gone through: see the health of ctgc")}
	}
	for _, s := range l.sets {
		if err := own.Err(); err != nil { // its caller has left
			if answer.err == nil {
				answer.err = err
			}
			break
		}
		passes, err := l.pass(own, s, q.order)
		for _, p := range passes {
			p.Map = s.nameOf(p.Map)
			answer.passes = append(answer.passes, p)
		}
		if err != nil {
			answer.err = errors.Join(answer.err, fmt.Errorf("%s maps: %w", s.name, err))
		}
	}
	l.reporter.reportHealth(l.sets, l.unasked, l.unseen)
	return answer
}

func (l *loop) close() {
	for _, s := range l.sets {
		if err := s.close(); err != nil {
			l.log.Warn("Collector was not closed", "set", s.name, "error", err)
		}
	}
}
