// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"context"
	"reflect"
	"time"
)

// waiter waits for channels, again and again.
type waiter struct {
	cases []reflect.SelectCase
	timer *time.Timer
}

// any returns when one of the channels is closed, false if the context was done first.
func (w *waiter) any(ctx context.Context, channels []<-chan struct{}) bool {
	w.take(ctx, channels)
	return w.wait()
}

// anyFor is any that waits for some time at most.
func (w *waiter) anyFor(ctx context.Context, most time.Duration, channels []<-chan struct{}) bool {
	if w.timer == nil {
		w.timer = time.NewTimer(most)
	}
	w.timer.Reset(most)
	defer w.timer.Stop()
	w.take(ctx, channels)
	w.add(reflect.ValueOf(w.timer.C))
	return w.wait()
}

func (w *waiter) take(ctx context.Context, channels []<-chan struct{}) {
	w.cases = w.cases[:0]
	w.add(reflect.ValueOf(ctx.Done()))
	for _, ch := range channels {
		if ch != nil {
			w.add(reflect.ValueOf(ch))
		}
	}
}

func (w *waiter) add(ch reflect.Value) {
	w.cases = append(w.cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: ch})
}

// wait returns false if the first channel was the one.
func (w *waiter) wait() bool {
	chosen, _, _ := reflect.Select(w.cases)
	return chosen != 0
}
