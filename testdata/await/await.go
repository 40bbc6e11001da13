// SPDX-License-Identifier: Apache-2.0

// Package await waits in tests for what must come.
package await

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Bound is how long a test waits for what must come. It is no measure of how fast that
// has to be: it is many times what anything takes on a machine that is busy with others.
const Bound = 2 * time.Minute

// interval is how often a condition is checked.
const interval = time.Millisecond

// True waits until a condition holds, and fails the test if it does not. The condition
// is checked by the goroutine of the test, so it may use require.
func True(t testing.TB, holds func() bool, msgAndArgs ...any) {
	t.Helper()
	for deadline := time.Now().Add(Bound); !holds(); time.Sleep(interval) {
		if time.Now().After(deadline) {
			require.Fail(t, "the condition does not hold after "+Bound.String(), msgAndArgs...)
		}
	}
}
