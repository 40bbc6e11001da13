// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
)

const (
	// refusedInterval is how often everything is listed where the kernel
	// refuses to announce changes.
	refusedInterval = 30 * time.Second

	minBackoff = 10 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// reflector follows a kernel and writes what it says to the tables.
type reflector struct {
	log    *slog.Logger
	kernel kernel
	store  *store
	resync time.Duration
}

// run follows the kernel until the context ends. When it loses track it starts
// over, waiting longer each time unless all went well for a while.
func (r *reflector) run(ctx context.Context, health cell.Health) error {
	backoff := &job.ExponentialBackoff{Min: minBackoff, Max: maxBackoff}
	for {
		started := time.Now()
		err := r.follow(ctx, health)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(started) > 2*maxBackoff {
			backoff = &job.ExponentialBackoff{Min: minBackoff, Max: maxBackoff}
		}
		wait := backoff.Wait()
		health.Degraded("Lost track of the kernel, starting over", err)
		r.log.Warn("Netlink is read anew", "error", err, "wait", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// follow subscribes, lists everything, and applies changes until an error.
func (r *reflector) follow(ctx context.Context, health cell.Health) error {
	resync := r.resync
	changes, noChanges := r.kernel.subscribe()
	switch {
	case refused(noChanges):
		changes, resync = silence{}, min(resync, refusedInterval)
	case noChanges != nil:
		return noChanges
	}
	defer changes.close()

	for {
		problems, err := r.list(ctx, changes, allKinds)
		if err != nil {
			return err
		}
		if problems := errors.Join(noChanges, problems); problems != nil {
			health.Degraded("Not everything can be read: "+r.store.summary(), problems)
		} else {
			health.OK(r.store.summary())
		}
		if err := r.apply(ctx, changes, time.Now().Add(resync)); err != nil {
			return err
		}
	}
}

// apply writes changes as they come, until a time.
func (r *reflector) apply(ctx context.Context, changes feed, until time.Time) error {
	for time.Now().Before(until) {
		events, err := changes.receive(ctx, until)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			continue
		}
		stale, err := r.store.write(nil, events)
		if err != nil {
			return err
		}
		if _, err := r.list(ctx, changes, stale); err != nil {
			return err
		}
	}
	return nil
}

// list lists what is stale until nothing is. Changes that were queued by then go
// into the same transaction, so that none older than the listing shows.
func (r *reflector) list(ctx context.Context, changes feed, stale kinds) (problems, err error) {
	for stale != 0 && ctx.Err() == nil {
		l, err := r.kernel.list(ctx, stale)
		if err != nil {
			return nil, err
		}
		events, err := changes.pending()
		if err != nil {
			return nil, err
		}
		if stale, err = r.store.write(l, events); err != nil {
			return nil, err
		}
		problems = errors.Join(problems, l.problems)
	}
	return problems, ctx.Err()
}

// silence is the feed where the kernel refuses to announce changes.
type silence struct{}

func (silence) receive(ctx context.Context, until time.Time) ([]event, error) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, nil
	}
}

func (silence) pending() ([]event, error) { return nil, nil }

func (silence) close() {}
