// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// tiredAPI is an API server that does badly with pods, and counts what it is asked for them. The
// times between are those of an agent.
type tiredAPI struct {
	*server // for timing
	*FakeAPI
	asked  atomic.Int32
	listed atomic.Int32
	most   int32 // requests, for a test to end

	lists   func(context.Context) (*itemList, error)
	watches func(*objects.Kind, metav1.ListOptions) (watch.Interface, error)
}

func (d *tiredAPI) timing() timing { return d.server.timing() }

func (d *tiredAPI) list(
	ctx context.Context, k *objects.Kind, opts metav1.ListOptions,
) (*itemList, error) {
	if k.Resource != "pods" || d.lists == nil {
		if k.Resource == "pods" {
			d.listed.Add(1)
		}
		return d.FakeAPI.list(ctx, k, opts)
	}
	d.count(ctx)
	return d.lists(ctx)
}

func (d *tiredAPI) watch(
	ctx context.Context, k *objects.Kind, opts metav1.ListOptions,
) (watch.Interface, error) {
	if k.Resource != "pods" {
		if opts.SendInitialEvents != nil {
			return nil, apierrors.NewBadRequest("not supported")
		}
		return d.FakeAPI.watch(ctx, k, opts)
	}
	if d.watches == nil {
		return nil, apierrors.NewBadRequest("not supported")
	}
	d.count(ctx)
	return d.watches(k, opts)
}

// count holds a request up forever when there are too many, as the agent may know no end.
func (d *tiredAPI) count(ctx context.Context) {
	if d.asked.Add(1) > d.most {
		<-ctx.Done()
	}
}

func (d *tiredAPI) serves(ctx context.Context, k *objects.Kind) (bool, error) {
	return d.FakeAPI.serves(ctx, k)
}

func (d *tiredAPI) definition(ctx context.Context, k *objects.Kind) (definition, error) {
	return d.FakeAPI.definition(ctx, k)
}

// IsWatchListSemanticsUnSupported lets [cache.Reflector] ask for initial events.
func (*tiredAPI) IsWatchListSemanticsUnSupported() bool { return false }

// run returns how many requests for pods an agent sends in some time.
func (d *tiredAPI) run(t *testing.T, during time.Duration) (requests int, a *agent) {
	d.FakeAPI, d.server, d.most = NewFakeAPI(), nil, 1000
	require.NoError(t, d.Sync())
	require.NoError(t, d.Apply(pods("a")))
	a = newAgent(t, objects.EndpointsKubernetes, func([]*objects.Kind) api { return d })
	time.Sleep(during)
	synctest.Wait()
	return int(d.asked.Load()), a
}

// oneEvent is a watch that ends after an event.
func oneEvent(k *objects.Kind) (watch.Interface, error) {
	pod, err := decodeItem(k, []byte(`{"kind":"Pod","metadata":{"name":"a","resourceVersion":"1"}}`))
	events := make(chan watch.Event, 1)
	events <- watch.Event{Type: watch.Modified, Object: pod}
	close(events)
	return watch.NewProxyWatcher(events), err
}

// Watches that end at once follow each other ever more slowly, also those that should send all
// objects first: these are listed then.
func TestShortWatches(t *testing.T) {
	for name, initial := range map[string]bool{"watch": false, "initial events": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &tiredAPI{watches: func(
					k *objects.Kind, opts metav1.ListOptions,
				) (watch.Interface, error) {
					if opts.SendInitialEvents != nil && !initial {
						return nil, apierrors.NewBadRequest("not supported")
					}
					return oneEvent(k)
				}}
				n, a := d.run(t, time.Hour)
				require.Less(t, n, 150)
				require.Greater(t, n, 50)
				a.endpoints("a")
				a.state("pods", tables.SourceSynced)
			})
		})
	}
}

// A watch that is to send all objects, and sends nothing, is no reason not to list them.
func TestSilentInitialEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &tiredAPI{watches: func(
			*objects.Kind, metav1.ListOptions,
		) (watch.Interface, error) {
			return watch.NewFake(), nil
		}}
		_, a := d.run(t, 3*time.Minute)
		a.endpoints("a")
		a.state("pods", tables.SourceSynced)
	})
}

// watchesOnly are watches of an API server that does not send all objects by a watch.
func watchesOnly(
	begin func() watch.Interface,
) func(*objects.Kind, metav1.ListOptions) (watch.Interface, error) {
	return func(_ *objects.Kind, opts metav1.ListOptions) (watch.Interface, error) {
		if opts.SendInitialEvents != nil {
			return nil, apierrors.NewBadRequest("not supported")
		}
		return begin(), nil
	}
}

// Watches that are too old again and again have the kind listed ever more slowly.
func TestExpiredWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &tiredAPI{watches: watchesOnly(func() watch.Interface {
			events := make(chan watch.Event, 1)
			expired := apierrors.NewResourceExpired("too old").ErrStatus
			events <- watch.Event{Type: watch.Error, Object: &expired}
			close(events)
			return watch.NewProxyWatcher(events)
		})}
		_, _ = d.run(t, time.Hour)
		require.Less(t, int(d.listed.Load()), 150)
		require.Greater(t, int(d.listed.Load()), 40)
	})
}

// A proxy may end watches before the first bookmark. That is no reason to list each time.
func TestSilentWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &tiredAPI{watches: watchesOnly(func() watch.Interface {
			events := make(chan watch.Event)
			w := watch.NewProxyWatcher(events)
			go func() {
				defer close(events)
				select {
				case <-time.After(50 * time.Second):
				case <-w.StopChan():
				}
			}()
			return w
		})}
		n, a := d.run(t, time.Hour)
		require.Greater(t, n, 70)
		require.Less(t, int(d.listed.Load()), 13)
		require.Greater(t, int(d.listed.Load()), 6)
		a.state("pods", tables.SourceSynced)
	})
}

// Listings that fail follow each other ever more slowly, also if each takes long, and not before
// the API server wants them.
func TestFailingListings(t *testing.T) {
	overloaded := func(retryAfter int32) error {
		err := apierrors.NewServiceUnavailable("overloaded")
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
		return err
	}
	for _, c := range []struct {
		name       string
		takes      time.Duration
		retryAfter int32
		during     time.Duration
		most       int
	}{
		{"at once", 0, 0, time.Hour, 150},
		{"late", 40 * time.Second, 0, time.Hour, 70},
		{"with a time", 0, 30, time.Minute, 3},
		{"with a time without end", 0, 1 << 30, time.Hour, 61},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &tiredAPI{lists: func(ctx context.Context) (*itemList, error) {
					select {
					case <-time.After(c.takes):
						return nil, overloaded(c.retryAfter)
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}}
				n, _ := d.run(t, c.during)
				require.LessOrEqual(t, n, c.most)
				require.Greater(t, n, c.most/4)
			})
		})
	}
}
