// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/stream"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// queueSize is how many events a follower may be behind.
const queueSize = 1024

// tellInterval is how long a follower may not know that it loses events.
const tellInterval = time.Second

// Source passes events on. Its methods may be called from any goroutine.
type Source struct {
	rules    *ruleCounters
	enricher *enricher
	drops    *recorder
	monitors *monitors
	reports  func() bool // whether there is anything that reports events

	mu        sync.Mutex                       // serializes changes of followers
	followers atomic.Pointer[[]*follower]      // replaced as a whole
	counts    [bpf.EventFlow + 1]atomic.Uint64 // by kind
	malformed atomic.Uint64
	lost      atomic.Uint64
}

// Counts are numbers of events since the agent's start.
type Counts struct {
	Drops, Flows uint64
	Malformed    uint64 // records that are no event
	Lost         uint64 // not passed on to a follower that was too slow, counted for each
}

// Counts returns how many events there were.
func (s *Source) Counts() Counts {
	return Counts{
		Drops: s.counts[bpf.EventDrop].Load(), Flows: s.counts[bpf.EventFlow].Load(),
		Malformed: s.malformed.Load(), Lost: s.lost.Load(),
	}
}

// Reports reports whether programs are loaded: otherwise there are no events.
func (s *Source) Reports() bool { return s.reports() }

// Follow returns the events that a filter chooses, from when they are observed
// on until the context of the observer ends. Between them are events of the kind
// [tables.EventLost] where the observer was too slow.
func (s *Source) Follow(filter Filter) stream.Observable[*tables.Event] {
	return stream.FuncObservable[*tables.Event](
		func(ctx context.Context, next func(*tables.Event), complete func(error)) {
			f := &follower{filter: filter, queue: make(chan *tables.Event, queueSize)}
			leave, err := s.monitors.enter(filter)
			if err != nil {
				go complete(err)
				return
			}
			s.change(func(all []*follower) []*follower { return append(all, f) })
			go func() {
				f.run(ctx, next)
				s.change(func(all []*follower) []*follower {
					return slices.DeleteFunc(all, func(other *follower) bool { return other == f })
				})
				leave()
				complete(nil)
			}()
		})
}

// PortsExhausted returns the drops for want of a port to translate to: what to
// collect garbage for.
func (s *Source) PortsExhausted() stream.Observable[*tables.Event] {
	return s.dropped(bpf.ReasonNoSNATPort)
}

// SharesUsedUp returns the drops of what pods begin that have their share.
func (s *Source) SharesUsedUp() stream.Observable[*tables.Event] {
	return s.dropped(bpf.ReasonConnectionShare, bpf.ReasonPortShare)
}

func (s *Source) dropped(reasons ...bpf.Reason) stream.Observable[*tables.Event] {
	return s.Follow(Filter{Kinds: []bpf.EventKind{bpf.EventDrop}, Reasons: reasons})
}

func (s *Source) change(edit func([]*follower) []*follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*follower
	if old := s.followers.Load(); old != nil {
		all = slices.Clone(*old)
	}
	all = edit(all)
	s.followers.Store(&all)
}

// record takes in a record of the ring buffer.
func (s *Source) record(sample []byte) {
	e, err := decode(sample)
	if err != nil {
		s.malformed.Add(1)
		return
	}
	s.handle(&e)
}

// handle passes an event on. Nothing is looked up for events without followers.
func (s *Source) handle(raw *bpf.Event) {
	s.counts[raw.Kind].Add(1)
	if raw.Kind == bpf.EventDrop {
		s.drops.add(raw)
	}
	followers := s.followers.Load()
	if followers == nil {
		return
	}
	var event *tables.Event
	for _, f := range *followers {
		if !f.filter.wants(raw) {
			continue
		}
		if event == nil {
			event = s.enricher.enrich(raw)
		}
		if f.filter.matches(event) && !f.offer(event) {
			s.lost.Add(1)
		}
	}
}

// follower is one observer of events.
type follower struct {
	filter Filter
	queue  chan *tables.Event
	lost   atomic.Uint64 // not told yet
}

// offer queues an event if there is room.
func (f *follower) offer(e *tables.Event) bool {
	select {
	case f.queue <- e:
		return true
	default:
		f.lost.Add(1)
		return false
	}
}

// run passes on what is queued until the context ends.
func (f *follower) run(ctx context.Context, next func(*tables.Event)) {
	told := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-f.queue:
			next(e)
			// Events are lost while the queue is full: they are missed behind
			// what is in it. Under a flood it never empties.
			if len(f.queue) == 0 || time.Since(told) > tellInterval {
				f.tellLost(next)
				told = time.Now()
			}
		}
	}
}

func (f *follower) tellLost(next func(*tables.Event)) {
	if n := f.lost.Swap(0); n > 0 {
		next(&tables.Event{Kind: tables.EventLost, Time: time.Now().UTC(), Lost: n})
	}
}

// monitors keeps the table of those who follow new flows.
type monitors struct {
	db    *statedb.DB
	table statedb.RWTable[*tables.Monitor]
	last  atomic.Uint64
}

// enter adds a row for a follower of new flows. The returned function removes it.
func (m *monitors) enter(filter Filter) (leave func(), err error) {
	if !filter.flows() {
		return func() {}, nil
	}
	row := &tables.Monitor{ID: m.last.Add(1), Filters: filter.String(), Since: time.Now().UTC()}
	wtxn := m.db.WriteTxn(m.table)
	defer wtxn.Abort()
	if _, _, err := m.table.Insert(wtxn, row); err != nil {
		return nil, err
	}
	wtxn.Commit()
	return func() {
		wtxn := m.db.WriteTxn(m.table)
		defer wtxn.Abort()
		m.table.Delete(wtxn, row) // fails only without the lock of the table
		wtxn.Commit()
	}, nil
}
