// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// eventStore turns what a [cache.Reflector] stores into events.
type eventStore struct {
	ctx context.Context // of the reflector, whose calls bring none
	r   *reflector
}

var _ cache.ReflectorStore = eventStore{}

// Add implements [cache.ReflectorStore].
func (s eventStore) Add(obj any) error {
	s.r.send(s.ctx, event{op: opPut, item: obj.(*item)})
	return nil
}

// Update implements [cache.ReflectorStore].
func (s eventStore) Update(obj any) error { return s.Add(obj) }

// Delete implements [cache.ReflectorStore].
func (s eventStore) Delete(obj any) error {
	s.r.send(s.ctx, event{op: opDelete, item: obj.(*item)})
	return nil
}

// Replace implements [cache.ReflectorStore].
func (s eventStore) Replace(objs []any, _ string) error {
	items := make([]*item, len(objs))
	for i, o := range objs {
		items[i] = o.(*item)
	}
	s.r.send(s.ctx, event{op: opReplace, listing: items})
	return nil
}

// Resync implements [cache.ReflectorStore]. The table needs none.
func (eventStore) Resync() error { return nil }

// tap passes the events of a watch on, and tells of errors among them, which
// [cache.Reflector] deals with in silence.
type tap struct {
	watch.Interface
	events chan watch.Event
	stop   func()
}

func newTap(w watch.Interface, report func(error)) *tap {
	stopped := make(chan struct{})
	t := &tap{Interface: w, events: make(chan watch.Event), stop: sync.OnceFunc(func() { close(stopped) })}
	go func() {
		defer close(t.events)
		for ev := range w.ResultChan() {
			if ev.Type == watch.Error {
				report(apierrors.FromObject(ev.Object))
			}
			select {
			case t.events <- ev:
			case <-stopped:
				return
			}
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
