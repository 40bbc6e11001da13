// SPDX-License-Identifier: Apache-2.0

// Package pause waits, for as long as a context lasts.
package pause

import (
	"context"
	"time"
)

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
