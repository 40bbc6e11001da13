// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/testdata/await"
)

func TestMain(m *testing.M) {
	AgentMain(os.Args)
	// GoBGP, which is the world's router in a test, leaves some behind when it stops.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(
		"github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
}

// timeout is for a test that takes a few seconds where nothing else runs.
const timeout = 2 * await.Bound

// requireRoot skips a test that makes namespaces, or fails it where that must
// not be skipped.
func requireRoot(t testing.TB) {
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("SLUICE_REQUIRE_PRIVILEGED") != "":
		t.Fatal(ErrNotRoot)
	default:
		t.Skip(ErrNotRoot)
	}
}

func newCluster(t testing.TB, options Options) (context.Context, *Cluster) {
	t.Helper()
	requireRoot(t)
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	c, err := New(ctx, options)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range c.Nodes {
				if log, err := os.ReadFile(n.Agent.LogPath()); err == nil {
					t.Logf("log of the agent of %s:\n%s", n.Name, log)
				}
			}
		}
		c.Close()
		require.NoDirExists(t, c.Dir())
	})
	return ctx, c
}
