// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"time"

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
	s.r.unfinished, s.r.listed = false, time.Now()
	s.r.activity.record()
	select {
	case s.r.queued <- struct{}{}:
		s.r.send(s.ctx, event{op: opReplace, listing: items})
	case <-s.ctx.Done():
	}
	return nil
}

// Resync implements [cache.ReflectorStore]. The table needs none.
func (eventStore) Resync() error { return nil }
