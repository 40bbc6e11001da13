// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/testdata/await"
)

// Garbage is collected as ever when the start is over, when there has been a
// collection all the same, and when the agent stops before.
func TestCollectionIsPutOff(t *testing.T) {
	for name, end := range map[string]func(started chan struct{}, stop func()){
		"started":   func(started chan struct{}, _ func()) { close(started) },
		"collected": func(chan struct{}, func()) { runtime.GC() },
		"stopped":   func(_ chan struct{}, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			started, over := make(chan struct{}), make(chan struct{})
			go func() {
				putOffCollection(ctx, started, uncollected)
				close(over)
			}()
			await.True(t, func() bool { return debug.SetMemoryLimit(-1) == uncollected })
			end(started, stop)
			<-over
			require.EqualValues(t, math.MaxInt64, debug.SetMemoryLimit(-1))
			require.Equal(t, gcPercent, debug.SetGCPercent(gcPercent))
		})
	}
}

func TestUncollectedIsAPartOfTheLimit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.max")
	require.EqualValues(t, uncollected, uncollectedOf(file))
	for text, want := range map[string]int64{"max\n": uncollected, "671088640\n": 160 << 20, "17179869184\n": uncollected} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.Equal(t, want, uncollectedOf(file), text)
	}
}
