// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"slices"
	"sync"

	"github.com/cilium/stream"

	"github.com/sluice-net/sluice/bpf/gc"
)

// Fake is a [GC] for tests of those who use one. It has no maps.
type Fake struct {
	observers observers

	mu      sync.Mutex
	enabled bool
	runs    []FakeRun
	passes  []gc.Pass
	err     error
}

// FakeRun is a pass that was requested of a [Fake].
type FakeRun struct {
	Filter gc.Filter           // of Run
	Chosen func(gc.Entry) bool // of Flush
	Reason string
}

var _ GC = (*Fake)(nil)

// NewFake returns a Fake whose passes find nothing.
func NewFake() *Fake { return &Fake{} }

// Answer sets what passes come to from now on.
func (f *Fake) Answer(passes []gc.Pass, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passes, f.err = passes, err
}

// Runs returns the passes that were asked for.
func (f *Fake) Runs() []FakeRun {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.runs)
}

// Enabled reports whether passes were enabled.
func (f *Fake) Enabled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.enabled
}

// Remove tells the observers of a removal.
func (f *Fake) Remove(e gc.Entry) { f.observers.tell(e) }

// Enable implements [GC].
func (f *Fake) Enable() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enabled = true
}

// Run implements [GC].
func (f *Fake) Run(ctx context.Context, filter gc.Filter, reason string) ([]gc.Pass, error) {
	return f.run(ctx, FakeRun{Filter: filter, Reason: reason})
}

// Flush implements [GC].
func (f *Fake) Flush(ctx context.Context, chosen func(gc.Entry) bool, reason string) ([]gc.Pass, error) {
	return f.run(ctx, FakeRun{Chosen: chosen, Reason: reason})
}

func (f *Fake) run(ctx context.Context, run FakeRun) ([]gc.Pass, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs = append(f.runs, run)
	return slices.Clone(f.passes), f.err
}

// Observe4 implements [GC].
func (f *Fake) Observe4() stream.Observable[gc.Entry] { return f.observers.of(false) }

// Observe6 implements [GC].
func (f *Fake) Observe6() stream.Observable[gc.Entry] { return f.observers.of(true) }
