// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sluice-net/sluice/sources/objects"
)

// list implements [api].
func (f *FakeAPI) list(ctx context.Context, k *objects.Kind, _ metav1.ListOptions) (*itemList, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.find(k.Source())
	for !r.listed && !r.absent && !r.broken {
		if err := f.wait(ctx, r); err != nil {
			return nil, err
		}
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	list := &itemList{}
	list.ResourceVersion = strconv.Itoa(len(r.log))
	for _, key := range slices.Sorted(maps.Keys(r.objects)) {
		data, err := json.Marshal(r.objects[key])
		if err != nil {
			return nil, err
		}
		i, err := decodeItem(k, data)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, i)
	}
	return list, nil
}

// wait waits for a change of a resource, without the lock.
func (f *FakeAPI) wait(ctx context.Context, r *fakeResource) error {
	changed := r.changed
	f.mu.Unlock()
	defer f.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// err is why the resource can be neither listed nor watched.
func (r *fakeResource) err() error {
	switch {
	case r.absent:
		return apierrors.NewNotFound(schema.GroupResource{Group: r.kind.Group, Resource: r.kind.Resource}, "")
	case r.broken:
		return apierrors.NewServiceUnavailable("broken by k8s/break")
	}
	return nil
}

// watch implements [api].
func (f *FakeAPI) watch(ctx context.Context, k *objects.Kind, opts metav1.ListOptions) (watch.Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.find(k.Source())
	if err := r.err(); err != nil {
		return nil, err
	}
	from, err := strconv.Atoi(opts.ResourceVersion)
	if err != nil || from < r.lost {
		return nil, apierrors.NewResourceExpired("too old resource version: " + opts.ResourceVersion)
	}
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	r.watches++
	r.committed = max(r.committed, from)
	go f.deliver(ctx, r, k, w, events, from)
	return w, nil
}

// deliver sends what happens from some resource version on.
func (f *FakeAPI) deliver(ctx context.Context, r *fakeResource, k *objects.Kind, w *watch.ProxyWatcher, to chan<- watch.Event, from int) {
	defer close(to)
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		r.watches--
	}()
	send := func(ev watch.Event) bool {
		select {
		case to <- ev:
			return true
		case <-w.StopChan():
		case <-ctx.Done():
		}
		return false
	}
	for {
		f.mu.Lock()
		log, err, absent, lost, changed := r.log, r.err(), r.absent, r.lost, r.changed
		f.mu.Unlock()
		if from < lost && err == nil {
			err = apierrors.NewResourceExpired("too old resource version: " + strconv.Itoa(from))
		}
		end := func() {
			status := err.(apierrors.APIStatus).Status()
			send(watch.Event{Type: watch.Error, Object: &status})
		}
		if err != nil && !absent {
			end()
			return
		}
		for ; from < len(log); from++ {
			i, err := decodeItem(k, log[from].data)
			if err != nil {
				return
			}
			version := from + 1
			i.ResourceVersion, i.partial = strconv.Itoa(version), log[from].partial
			i.committed = func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				r.committed = max(r.committed, version)
			}
			if !send(watch.Event{Type: log[from].kind, Object: i}) {
				return
			}
		}
		if absent { // after the deletions that come before it
			end()
			return
		}
		select {
		case <-changed:
		case <-w.StopChan():
			return
		case <-ctx.Done():
			return
		}
	}
}

// serves implements [api].
func (f *FakeAPI) serves(_ context.Context, k *objects.Kind) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.find(k.Source()).absent, nil
}

// definition implements [api].
func (f *FakeAPI) definition(_ context.Context, k *objects.Kind) (definition, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.find(k.Source()).definitionNow(), nil
}

func (r *fakeResource) definitionNow() definition {
	if r.absent {
		return definition{}
	}
	return definition{uid: types.UID(fmt.Sprintf("definition-%d", r.definition)), deleting: r.deleting}
}

// timing implements [api]: a script waits for all of it.
func (*FakeAPI) timing() timing {
	return timing{
		retryMin: 5 * time.Millisecond, retryMax: 20 * time.Millisecond,
		absent: 20 * time.Millisecond, idle: 5 * time.Minute, silence: maxSilence,
	}
}

// IsWatchListSemanticsUnSupported tells [cache.Reflector] to list, then watch.
func (*FakeAPI) IsWatchListSemanticsUnSupported() bool { return true }
