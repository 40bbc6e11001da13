// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/stream"

	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/tables"
)

// Errors of requests.
var (
	// ErrNoMaps says that the agent has no maps in the kernel (--bpf=memory), so
	// that there are no connections.
	ErrNoMaps = errors.New("there are no connections: the agent's maps are in memory")

	// ErrStopped says that the agent is about to end.
	ErrStopped = errors.New("the garbage collection has ended")
)

// GC is what a [*Runner] and a [*Fake] offer.
type GC interface {
	// Enable begins the passes that are not requested. It may be called again.
	Enable()

	// Run makes one pass now, or as soon as the one that runs has ended, also
	// before Enable. Each map of it is a row of ct-gc-runs, with the reason, which
	// is [ReasonRequest] if none is given, and one that [CheckReason] takes. Passes
	// are returned beside an error too; the error may be ErrNoMaps or ErrStopped.
	Run(ctx context.Context, f gc.Filter, reason string) ([]gc.Pass, error)

	// Flush removes chosen connections, in use or not: see [gc.Collector.Flush].
	// It is otherwise as Run.
	Flush(ctx context.Context, chosen func(gc.Entry) bool, reason string) ([]gc.Pass, error)

	// Observe4 and Observe6 return the removals of a family, from when they are
	// observed on until the observer's context or the agent ends: each once, with
	// what it was at last. An observer that is thousands of removals behind
	// misses some, which are counted.
	Observe4() stream.Observable[gc.Entry]
	Observe6() stream.Observable[gc.Entry]
}

// Timing is how long things wait.
type Timing struct {
	Poll     time.Duration // between counts of the entries
	Look     time.Duration // between looks at what changes rarely: sets of maps, fragments
	Coalesce time.Duration // for which addresses that go are collected
	Ports    time.Duration // at least, between passes for want of ports, or of shares
}

// DefaultTiming is used if nothing else is provided.
var DefaultTiming = Timing{Poll: 5 * time.Second, Look: time.Minute, Coalesce: 300 * time.Millisecond, Ports: minInterval}

// Runner makes the passes. Its methods may be called from any goroutine.
type Runner struct {
	log       *slog.Logger
	timing    Timing
	loaded    func() bool
	open      func() (*set, error)         // the global set
	clusters  func([]*set) ([]*set, error) // brings the sets behind the global one up to date
	fragments func() ([]tables.BPFMap, error)
	packets   func() uint64         // that have passed the programs
	owned     func(netip.Addr) bool // whether an endpoint has an address
	reporter  *reporter
	observers observers
	released  releasedAddrs

	requests chan *request
	ports    chan string   // a port was not to be had: the reason of the pass
	enabled  chan struct{} // closed when passes are made unasked
	ended    chan struct{} // closed when no pass will be made any more
	enable   sync.Once
}

var _ GC = (*Runner)(nil)

func newRunner() *Runner {
	r := &Runner{
		timing:   DefaultTiming,
		requests: make(chan *request),
		ports:    make(chan string, 1),
		enabled:  make(chan struct{}),
		ended:    make(chan struct{}),
		released: releasedAddrs{addrs: map[netip.Addr]struct{}{}, wake: make(chan struct{}, 1)},
	}
	r.observers.ended = r.ended
	return r
}

// Enable implements [GC].
func (r *Runner) Enable() { r.enable.Do(func() { close(r.enabled) }) }

// Observe4 implements [GC].
func (r *Runner) Observe4() stream.Observable[gc.Entry] { return r.observers.of(false) }

// Observe6 implements [GC].
func (r *Runner) Observe6() stream.Observable[gc.Entry] { return r.observers.of(true) }

// Run implements [GC].
func (r *Runner) Run(ctx context.Context, f gc.Filter, reason string) ([]gc.Pass, error) {
	return r.submit(ctx, order{reason, collect(f)})
}

// Recount makes a pass that removes what has expired, and so has the counts of ports be right.
func (r *Runner) Recount(ctx context.Context) error {
	f := gc.Filter{Expired: true, Orphans: true, ReplyGrace: ReplyGrace}
	_, err := r.Run(ctx, f, "port-demand")
	return err
}

// Flush implements [GC].
func (r *Runner) Flush(ctx context.Context, chosen func(gc.Entry) bool, reason string) ([]gc.Pass, error) {
	return r.submit(ctx, order{reason, func(ctx context.Context, c Collector, o *observers) (work, error) {
		passes, err := c.Flush(ctx, chosen, o.removed(nil))
		return work{passes: passes}, err
	}})
}

// exhausted asks for a pass with a reason, as packets are dropped for want of what it may
// find. Of two reasons at the same moment one is asked for again by the next packets.
func (r *Runner) exhausted(reason string) {
	select {
	case r.ports <- reason:
	default:
	}
}

// order is what a pass does to each set of maps.
type order struct {
	reason string
	do     func(context.Context, Collector, *observers) (work, error)
}

// work is what was done to a set of maps.
type work struct {
	passes []gc.Pass
	all    bool // it has removed all that can go
}

// collect returns how to remove what a filter says.
func collect(f gc.Filter) func(context.Context, Collector, *observers) (work, error) {
	return func(ctx context.Context, c Collector, o *observers) (work, error) {
		f := f // for each set
		f.Removed = o.removed(f.Removed)
		passes, err := c.Run(ctx, f)
		return work{passes, f.All || f.Expired && f.Orphans && f.Now == 0}, err
	}
}

// request is a requested pass, whose caller waits.
type request struct {
	ctx   context.Context
	order order
	reply chan<- reply
}

type reply struct {
	passes []gc.Pass
	err    error
}

func (r *Runner) submit(ctx context.Context, o order) ([]gc.Pass, error) {
	if o.reason == "" {
		o.reason = ReasonRequest
	}
	if err := CheckReason(o.reason); err != nil {
		return nil, fmt.Errorf("reason: %w", err)
	}
	replies := make(chan reply, 1)
	select {
	case r.requests <- &request{ctx, o, replies}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.ended:
		return nil, ErrStopped
	}
	answer := <-replies // the pass ends with the context
	return answer.passes, answer.err
}
