// SPDX-License-Identifier: Apache-2.0

// Package pause waits until a time, or until a context ends, and says how long to wait
// between attempts.
package pause

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// NewBackoff returns how long to wait after each failed attempt: first, then about twice as
// long each time, at most last.
func NewBackoff(first, last time.Duration) *wait.Backoff {
	const steps = 20 // enough to get from any first to any last
	return &wait.Backoff{Duration: first, Cap: last, Factor: 2, Jitter: 0.5, Steps: steps}
}

// For waits for some time. It returns false if the context ends before.
func For(ctx context.Context, d time.Duration) bool { return Until(ctx, d, nil) }

// Until waits for some time, or until a channel is closed. It returns false if the context
// ends before.
func Until(ctx context.Context, d time.Duration, closed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-closed:
	}
	return true
}
