// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-net/sluice/tables"
)

// Fake stands in for the kernel. Its state is what it was last set to, nothing
// at first. Each setting is announced and then listed as a whole, by the code
// that lists the kernel.
type Fake struct {
	mu    sync.Mutex
	state State
	held  chan struct{}          // closed by Set; nil if not held
	feeds map[*fakeFeed]struct{} // open subscriptions
}

// NewFake returns a fake without any rows.
func NewFake() *Fake { return &Fake{feeds: map[*fakeFeed]struct{}{}} }

// Set replaces the state. What the new one lacks is deleted.
func (f *Fake) Set(state State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = clone(state)
	orderAddresses(f.state.Addresses)
	if f.held != nil {
		close(f.held)
		f.held = nil
	}
	for feed := range f.feeds {
		feed.push(event{stale: allKinds}, nil)
	}
}

// Pending reports whether who subscribed has not written yet all that was set.
func (f *Fake) Pending() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for feed := range f.feeds {
		if !feed.idle || len(feed.events) > 0 {
			return true
		}
	}
	return false
}

// Hold makes listings wait for the next Set, and with the first of them the
// initialization of the tables. It is an error once the fake is in use.
func (f *Fake) Hold() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.feeds) > 0 {
		return errors.New("hold netlink: it has been started")
	}
	if f.held == nil {
		f.held = make(chan struct{})
	}
	return nil
}

// Break ends the present subscriptions with an error, as an overflow does.
func (f *Fake) Break(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for feed := range f.feeds {
		feed.push(event{}, err)
	}
}

func (f *Fake) subscribe() (feed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sub := &fakeFeed{fake: f, wake: make(chan struct{}, 1)}
	f.feeds[sub] = struct{}{}
	return sub, nil
}

func (f *Fake) list(ctx context.Context, want kinds) (*listing, error) {
	f.mu.Lock()
	held := f.held
	f.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &listing{kinds: want, State: clone(f.state)}, nil
}

// fakeFeed is a subscription. The lock of the fake guards it.
type fakeFeed struct {
	fake   *Fake
	wake   chan struct{}
	events []event
	err    error
	idle   bool // who subscribed waits for more
}

func (s *fakeFeed) push(ev event, err error) {
	s.events = append(s.events, ev)
	s.err = err
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *fakeFeed) receive(ctx context.Context, until time.Time) ([]event, error) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	s.setIdle(true)
	defer s.setIdle(false)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, nil
	case <-s.wake:
		s.setIdle(false) // before it is seen that nothing is queued any more
		return s.pending()
	}
}

func (s *fakeFeed) setIdle(idle bool) {
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	s.idle = idle
}

func (s *fakeFeed) pending() ([]event, error) {
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	events := s.events
	s.events = nil
	return events, s.err
}

func (s *fakeFeed) close() {
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	delete(s.fake.feeds, s)
}

// clone copies the rows: tables keep the very rows they are given.
func clone(s State) State {
	return State{
		Devices:       cloneRows(s.Devices),
		Addresses:     cloneRows(s.Addresses),
		Routes:        cloneRows(s.Routes),
		Neighbours:    cloneRows(s.Neighbours),
		BridgeEntries: cloneRows(s.BridgeEntries),
	}
}

func cloneRows[Row tables.Device | tables.NodeAddress | tables.Route | tables.Neighbour | tables.BridgeEntry](rows []*Row) []*Row {
	out := make([]*Row, len(rows))
	for i, r := range rows {
		row := *r
		out[i] = &row
	}
	return out
}
