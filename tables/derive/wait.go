// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"context"
	"reflect"
)

// waiter waits for channels, again and again.
type waiter struct{ cases []reflect.SelectCase }

// any returns when one of the channels is closed, false if the context was done first.
func (w *waiter) any(ctx context.Context, channels []<-chan struct{}) bool {
	w.cases = w.cases[:0]
	add := func(ch <-chan struct{}) {
		w.cases = append(w.cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ch)})
	}
	add(ctx.Done())
	for _, ch := range channels {
		add(ch)
	}
	chosen, _, _ := reflect.Select(w.cases)
	return chosen != 0
}
