// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables/pause"
)

const (
	// maxBatch bounds the events of one transaction, save that a listing is one.
	maxBatch = 5000

	// goodRun is how long a kind must have been followed since it was listed, for the next
	// error to be met with the shortest wait.
	goodRun = 30 * time.Second

	// maxRetryAfter bounds how long an API server can ask the agent to wait.
	maxRetryAfter = time.Minute
)

// reflector keeps the rows of one kind those of the API server.
type reflector struct {
	kind        *objects.Kind
	store       *objects.Store
	api         api
	db          *statedb.DB
	log         *slog.Logger
	status      *status
	initialized func(statedb.WriteTxn)

	events chan event

	// queued has a token while a listing is queued: no other one is then, as it may be large.
	queued chan struct{}

	// listedUnder is the definition that a guarded kind was listed under last, empty before.
	listedUnder types.UID
	stopWatch   atomic.Pointer[context.CancelFunc]
	activity    activity

	// Of the goroutine that lists and watches.
	listed     time.Time // when; zero if not since it began to
	unfinished bool      // the last watch was to send all objects, and has not
	pace       pace      // of watches
}

// event is a change to one object, or a listing of all.
type event struct {
	op      operation
	item    *item
	listing []*item
	why     string // the kind is absent
}

type operation int

const (
	opPut operation = iota
	opDelete
	opReplace
	opAbsent // the kind is served no more, or not yet
	opMerge  // a listing, beside which what is not in it stays
	opKeep   // nothing, as what would go stays
)

// run follows the kind until the context ends.
func (r *reflector) run(ctx context.Context, health cell.Health) error {
	r.status.start(health)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.follow(klog.NewContext(ctx, LibraryLogger(r.log))) })
	err := r.commitBatches(ctx)
	cancel()
	wg.Wait()
	return err
}

// follow lists and watches, again and again.
func (r *reflector) follow(ctx context.Context) {
	t := r.api.timing()
	retry := newBackoff(t)
	lister := r.newLister(ctx)
	for {
		r.listed = time.Time{}
		watching, stop := context.WithCancel(ctx)
		r.stopWatch.Store(&stop)
		err := lister.ListAndWatchWithContext(watching)
		stop()
		if !r.listed.IsZero() && time.Since(r.listed) > goodRun {
			retry = newBackoff(t)
		}
		delay := max(retry.Step(), askedDelay(err))
		if apierrors.IsNotFound(err) && r.isAbsent(ctx, err) {
			r.send(ctx, event{op: opAbsent})
			// What is served one day begins anew.
			lister, retry, delay = r.newLister(ctx), newBackoff(t), wait.Jitter(t.absent, 0.2)
		}
		if !pause.For(ctx, delay) {
			return
		}
	}
}

// askedDelay is how long the API server asks to wait, so that agents do not come all at once.
func askedDelay(err error) time.Duration {
	seconds, asked := apierrors.SuggestsClientDelay(err)
	if !asked {
		return 0
	}
	return wait.Jitter(min(time.Duration(seconds)*time.Second, maxRetryAfter), 1)
}

// relist ends the watch, so that the kind is listed again.
func (r *reflector) relist() {
	if stop := r.stopWatch.Load(); stop != nil {
		(*stop)()
	}
}

// isAbsent reports whether a kind that was not found is one that the API server
// does not know, rather than knows and cannot find.
func (r *reflector) isAbsent(ctx context.Context, notFound error) bool {
	served, err := r.api.serves(ctx, r.kind)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		r.status.broken("look for", err)
	case served:
		r.status.broken("list", notFound)
	}
	return err == nil && !served
}

func newBackoff(t timing) *wait.Backoff {
	return &wait.Backoff{Duration: t.retryMin, Cap: t.retryMax, Factor: 2, Jitter: 1, Steps: 20}
}

func (r *reflector) newLister(ctx context.Context) *cache.Reflector {
	log := klog.FromContext(ctx)
	lw := &cache.ListWatch{ListWithContextFunc: r.list, WatchFuncWithContext: r.watch}
	return cache.NewReflectorWithOptions(
		cache.ToListWatcherWithWatchListSemantics(lw, r.api), nil, eventStore{ctx, r},
		cache.ReflectorOptions{Name: r.kind.Source(), TypeDescription: r.kind.Source(), Logger: &log, Backoff: newBackoff(r.api.timing())})
}

func (r *reflector) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	list, err := r.api.list(ctx, r.kind, opts)
	if err != nil {
		r.report(ctx, "list", err)
		return nil, err
	}
	return list, nil
}

func (r *reflector) watch(
	ctx context.Context, opts metav1.ListOptions,
) (watch.Interface, error) {
	initial := opts.SendInitialEvents != nil
	if initial && r.unfinished {
		r.unfinished = false
		return nil, errors.New("the last watch ended before it had sent all objects") // so list
	}
	if !r.pace.wait(ctx, r.api.timing()) {
		return nil, ctx.Err()
	}
	w, err := r.api.watch(ctx, r.kind, opts)
	if initial {
		// Should this not work, whether it is supported or not, a listing is
		// tried at once, and that failing is the one to tell. The cause is
		// hidden, for cache.Reflector would try again by itself, and sleep
		// without looking whether it is to end.
		if err != nil {
			return nil, errors.New(err.Error())
		}
	} else if err != nil {
		r.report(ctx, "watch", err)
		return nil, err
	} else {
		r.status.resumed()
	}
	r.pace.begin()
	r.unfinished = initial
	return newTap(w, initial, &r.activity, r.api.timing(), func(err error) {
		r.report(ctx, "watch", err)
	}), nil
}

// pace is how soon a watch follows another. [cache.Reflector] begins one at once when the last
// one has ended after an event, however soon.
type pace struct {
	began   time.Time
	paused  time.Duration // before the last watch
	backoff *wait.Backoff
}

func (p *pace) begin() { p.began = time.Now() }

// wait waits before a watch. The wait grows while watches end sooner than the wait before them.
func (p *pace) wait(ctx context.Context, t timing) bool {
	if p.began.IsZero() {
		return true
	}
	if p.backoff == nil || time.Since(p.began) > p.paused {
		p.backoff = newBackoff(t)
	}
	p.paused = p.backoff.Step()
	return pause.For(ctx, p.paused)
}

// report makes an error visible, unless it comes from stopping, or from the
// absence of the kind that follow is about to find out.
func (r *reflector) report(ctx context.Context, verb string, err error) {
	if ctx.Err() == nil && !apierrors.IsNotFound(err) {
		r.status.broken(verb, err)
	}
}

// commitBatches commits events until the context ends. What is queued goes in
// one transaction; a single event waits for nothing.
func (r *reflector) commitBatches(ctx context.Context) error {
	var batch []event
	for r.receive(ctx, &batch) && r.review(ctx, batch) {
		if err := r.commit(batch); err != nil {
			return fmt.Errorf("reflect %s: %w", r.kind.Source(), err)
		}
		clear(batch) // what was listed is not kept
	}
	return nil
}

// receive waits for an event, and takes those that are queued behind it. It
// returns false when the context ends.
func (r *reflector) receive(ctx context.Context, batch *[]event) bool {
	*batch = (*batch)[:0]
	for wait := true; wait || len(*batch) < maxBatch; {
		var ev event
		if wait {
			select {
			case ev = <-r.events:
			case <-ctx.Done():
				return false
			}
		} else {
			select {
			case ev = <-r.events:
			default:
				return true
			}
		}
		if ev.listing != nil {
			<-r.queued
		}
		*batch = append(*batch, ev)
		wait = ev.item != nil && ev.item.partial
	}
	return true
}

// commit applies events in one transaction.
func (r *reflector) commit(batch []event) error {
	var (
		unusable error
		listed   *event
	)
	wtxn := r.db.WriteTxn(r.store.Table)
	defer wtxn.Abort()
	for i, ev := range batch {
		var err error
		switch ev.op {
		case opPut:
			if ev.item.object.Err != nil {
				unusable = ev.item.object.Err
			}
			err = r.store.Put(wtxn, ev.item.object)
		case opDelete:
			err = r.store.Delete(wtxn, ev.item.object.Name)
		case opReplace, opAbsent, opMerge:
			listed, unusable = &batch[i], nil
			all := make([]*objects.Object, len(ev.listing))
			for i, item := range ev.listing {
				all[i] = item.object
				if item.object.Err != nil {
					unusable = item.object.Err
				}
			}
			if ev.op == opMerge {
				err = r.putAll(wtxn, all)
			} else {
				err = r.store.Replace(wtxn, all)
			}
			r.initialized(wtxn)
		}
		if err != nil {
			return err
		}
	}
	wtxn.Commit()
	for _, ev := range batch {
		if ev.item != nil && ev.item.committed != nil {
			ev.item.committed()
		}
	}

	switch {
	case listed == nil:
		r.status.changed(r.store.Rows(), unusable)
	case listed.op == opAbsent:
		r.status.absent(listed.why)
	default:
		r.status.replaced(r.store.Rows(), unusable)
	}
	return nil
}

func (r *reflector) putAll(wtxn statedb.WriteTxn, all []*objects.Object) error {
	for _, o := range all {
		if err := r.store.Put(wtxn, o); err != nil {
			return err
		}
	}
	return nil
}

func (r *reflector) send(ctx context.Context, ev event) {
	select {
	case r.events <- ev:
	case <-ctx.Done():
	}
}
