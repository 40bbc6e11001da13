// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lock is a lease that says what comes of the requests: client-go only logs them.
type lock struct {
	resourcelock.Interface
	asked func(error)
}

// Get implements [resourcelock.Interface].
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	l.say("read", err)
	return record, raw, err
}

// Create implements [resourcelock.Interface].
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, record)
	l.say("create", err)
	return err
}

// Update implements [resourcelock.Interface].
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, record)
	l.say("write", err)
	return err
}

// say passes an error on, unless it only says that another operator was faster.
func (l *lock) say(what string, err error) {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) ||
		apierrors.IsAlreadyExists(err) {
		l.asked(nil)
		return
	}
	l.asked(fmt.Errorf("%s Lease %s: %w", what, l.Describe(), err))
}
