// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
)

// tap passes the events of a watch on, and tells of errors among them, which
// [cache.Reflector] deals with in silence.
type tap struct {
	watch.Interface
	events chan watch.Event
	stop   func()
}

// errIdle ends a watch when nothing has come for long, not even a bookmark, of which API servers
// send one a minute. An API server whose storage was restored from a backup sends nothing until its
// resourceVersion has come to that of the watch again. So the kind is listed anew.
var errIdle = apierrors.NewResourceExpired("watches have ended without an event")

// activity is when the API server has last said something of a kind.
type activity struct{ last atomic.Pointer[time.Time] }

func (a *activity) record() {
	now := time.Now()
	a.last.Store(&now)
}

// idle returns for how long it has said nothing, 0 if it never has.
func (a *activity) idle() time.Duration {
	last := a.last.Load()
	if last == nil {
		return 0
	}
	return time.Since(*last)
}

// newTap returns a tap. The watch ends with an error when nothing has been heard for longer than a
// bound. One that is to send all objects first has to begin with that.
func newTap(
	w watch.Interface, initial bool, activity *activity, t timing, report func(error),
) *tap {
	begins := time.AfterFunc(t.silence, func() {
		report(fmt.Errorf("the API server sends nothing for %s", t.silence))
		w.Stop()
	})
	if !initial {
		begins.Stop()
	}
	stopped := make(chan struct{})
	tapped := &tap{
		Interface: w, events: make(chan watch.Event),
		stop: sync.OnceFunc(func() { close(stopped) }),
	}
	go func() {
		defer close(tapped.events)
		defer begins.Stop()
		pass := func(ev watch.Event) bool {
			select {
			case tapped.events <- ev:
				return true
			case <-stopped:
				return false
			}
		}
		for ev := range w.ResultChan() {
			begins.Stop()
			activity.record()
			if ev.Type == watch.Error {
				report(apierrors.FromObject(ev.Object))
			}
			if !pass(ev) {
				return
			}
		}
		if activity.idle() > t.idle {
			pass(watch.Event{Type: watch.Error, Object: &errIdle.ErrStatus})
		}
	}()
	return tapped
}

// ResultChan implements [watch.Interface].
func (t *tap) ResultChan() <-chan watch.Event { return t.events }

// Stop implements [watch.Interface].
func (t *tap) Stop() {
	t.stop()
	t.Interface.Stop()
}
