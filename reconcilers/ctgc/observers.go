// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/stream"

	"github.com/sluice-net/sluice/bpf/gc"
)

// queueSize is how many removals an observer may be behind.
const queueSize = 4096

// observers are told of removals. Who tells them never waits.
type observers struct {
	ended <-chan struct{} // there will be no more removals

	mu   sync.Mutex                  // serializes changes of the list
	list atomic.Pointer[[]*observer] // replaced as a whole
	lost atomic.Uint64               // not passed on to an observer that was too slow, counted for each
}

// observer is one of them.
type observer struct {
	ipv6  bool
	queue chan gc.Entry
}

// of returns the removals of a family.
func (o *observers) of(ipv6 bool) stream.Observable[gc.Entry] {
	return stream.FuncObservable[gc.Entry](
		func(ctx context.Context, next func(gc.Entry), complete func(error)) {
			one := &observer{ipv6: ipv6, queue: make(chan gc.Entry, queueSize)}
			o.change(func(all []*observer) []*observer { return append(all, one) })
			go func() {
				one.run(ctx, o.ended, next)
				o.change(func(all []*observer) []*observer {
					return slices.DeleteFunc(all, func(other *observer) bool { return other == one })
				})
				complete(nil)
			}()
		})
}

func (o *observers) change(edit func([]*observer) []*observer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := edit(slices.Clone(o.all()))
	o.list.Store(&all)
}

func (o *observers) all() []*observer {
	if all := o.list.Load(); all != nil {
		return *all
	}
	return nil
}

// removed returns what a pass is to call for each removal: also may be nil.
// It is nil without observers, as to tell takes time.
func (o *observers) removed(also func(gc.Entry)) func(gc.Entry) {
	if len(o.all()) == 0 {
		return also
	}
	return func(e gc.Entry) {
		if also != nil {
			also(e)
		}
		o.tell(e)
	}
}

// tell queues a removal for each observer of its family that has room.
func (o *observers) tell(e gc.Entry) {
	ipv6 := e.Tuple.Is6()
	for _, one := range o.all() {
		if one.ipv6 != ipv6 {
			continue
		}
		select {
		case one.queue <- clone(e):
		default:
			o.lost.Add(1)
		}
	}
}

// clone returns a copy that shares nothing.
func clone(e gc.Entry) gc.Entry {
	if e.CT != nil {
		ct := *e.CT
		e.CT = &ct
	}
	if e.NAT != nil {
		nat := *e.NAT
		e.NAT = &nat
	}
	return e
}

// run passes on what is queued until the context ends, or there is no more.
func (o *observer) run(ctx context.Context, ended <-chan struct{}, next func(gc.Entry)) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case e := <-o.queue:
			next(e)
		case <-ended:
			for len(o.queue) > 0 && ctx.Err() == nil {
				next(<-o.queue)
			}
			return
		}
	}
}
