// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

// An expired connection goes with both of its translations, a live one stays with them.
func TestExpired(t *testing.T) {
	eachMethod(t, func(f *fixture) {
		for name, flow := range connections {
			f.connect(flow, ctmap.Entry{Lifetime: f.now - 100})
			f.pair(flow, 100)
			require.Equal(f, Pass{Scanned: 1, Expired: 1, Translations: 2}, f.run(Filter{Expired: true}), name)
			require.False(f, f.connected(flow), name)
			require.False(f, f.translated(flow), name)
			require.False(f, f.translated(replies(flow)), name)

			f.connect(flow, ctmap.Entry{Lifetime: f.now + 100})
			f.pair(flow, 100)
			require.Equal(f, Pass{Scanned: 3}, f.run(Filter{Expired: true, Orphans: true}), name)
			require.Equal(f, Pass{Scanned: 1, Flushed: 1, Translations: 2}, f.run(Filter{All: true}), name)
		}
	})
}
