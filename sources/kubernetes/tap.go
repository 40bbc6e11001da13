// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"sync"

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

// errSilentWatch ends a watch in which nothing came, not even a bookmark, of which API servers
// send one a minute. An API server whose storage was restored from a backup sends nothing until
// its resourceVersion has come to that of the watch again. So the kind is listed anew.
var errSilentWatch = apierrors.NewResourceExpired("the watch ended without an event")

// newTap returns a tap. A watch that resumes must have had an event when it ends.
func newTap(w watch.Interface, resumes bool, report func(error)) *tap {
	stopped := make(chan struct{})
	t := &tap{
		Interface: w, events: make(chan watch.Event),
		stop: sync.OnceFunc(func() { close(stopped) }),
	}
	go func() {
		defer close(t.events)
		pass := func(ev watch.Event) bool {
			select {
			case t.events <- ev:
				return true
			case <-stopped:
				return false
			}
		}
		silent := true
		for ev := range w.ResultChan() {
			silent = false
			if ev.Type == watch.Error {
				report(apierrors.FromObject(ev.Object))
			}
			if !pass(ev) {
				return
			}
		}
		if silent && resumes {
			pass(watch.Event{Type: watch.Error, Object: &errSilentWatch.ErrStatus})
		}
	}()
	return t
}

// ResultChan implements [watch.Interface].
func (t *tap) ResultChan() <-chan watch.Event { return t.events }

// Stop implements [watch.Interface].
func (t *tap) Stop() {
	t.stop()
	t.Interface.Stop()
}
