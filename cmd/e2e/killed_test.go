// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/cmd/api"
)

const (
	kills        = 30
	seedVariable = "SLUICE_E2E_SEED" // of the random changes and moments
)

// TestKilledUnderChurn kills the agent at random moments while objects change,
// and once the API server.
// Maps and programs stay while it is dead, what does not change is never decided
// otherwise, programs are at the pod's device all the time, and in the end the maps are what the objects ask for.
func TestKilledUnderChurn(t *testing.T) {
	c := startCluster(t)
	populate(c)
	c.Apply(blue)
	a := newAgent(t, c)
	a.startReady()
	k := a.kernel()
	a.converge(c, k)

	// Namespaces prod and test stay as they are; all others change.
	seed := seed(t)
	churn := newChurn(t, c, seed)
	churn.start()
	watch := startWatch(a, k)
	random := rand.New(rand.NewPCG(seed, 2))
	for i := range kills {
		if i == kills/2 {
			churn.interrupted.Store(true)
			c.KillAPIServer()
			c.StartAPIServer()
			churn.interrupted.Store(false)
		}
		// The moment is what is tested: while the agent starts, or some time later.
		time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond << random.IntN(4))
		a.kill()
		dead, running := a.contents(k), a.programs(k)
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		a.requireUnchanged(k, dead)
		a.requireRunning(k, running)
		a.start()
	}
	churn.stop()
	watch.stop()
	t.Logf("%d kills during %d changes of objects, of which the agent missed some", kills, churn.changes)

	a.awaitReady()
	w := a.converge(c, k)
	require.Greater(t, len(w.endpoints), churnPods/4, "there is something to compare")
	require.Greater(t, len(w.policies), 1)
	a.awaitHealthy(api.ModuleDropping) // policies of the churn may have no gateway

	t.Run("quiet restarts", func(t *testing.T) { testQuietRestarts(t, a, k, w) })
}

func seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(20)
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, seedVariable)
	}
	t.Logf("%s=%d", seedVariable, seed)
	return seed
}

// testQuietRestarts restarts the agent while nothing changes: packets meet the same in the
// slot that it has filled.
func testQuietRestarts(t *testing.T, a *agent, k *kernel, w *world) {
	for _, end := range []func(){a.kill, func() { require.Zero(t, a.terminate()) }} {
		before, err := k.state()
		require.NoError(t, err)
		end()
		a.startReady()
		a.eventually("the maps are what the objects ask for", func() error { return w.compare(k) })
		now, err := k.state()
		require.NoError(t, err)
		require.NotEqual(t, before.Slot, now.Slot)
		require.Greater(t, now.Generation, before.Generation)
	}
}

// watch looks all the time at what becomes of packets that no change concerns.
type watch struct {
	a      *agent
	end    context.CancelFunc
	wait   sync.WaitGroup
	looks  int
	errors []error
}

var steady = []struct {
	src, dst netip.Addr
	kind     string
}{
	{localPod, netip.MustParseAddr("203.0.113.1"), redirected},
	{localPod, netip.MustParseAddr("203.0.113.65"), plain}, // excluded
	{netip.MustParseAddr("fd00:1::10"), netip.MustParseAddr("2001:db8:100::1"), redirected},
	{netip.MustParseAddr("10.1.0.11"), netip.MustParseAddr("203.0.113.255"), redirected},
	{netip.MustParseAddr("10.1.0.12"), netip.MustParseAddr("203.0.113.1"), plain},   // of no policy
	{netip.MustParseAddr("10.2.0.10"), netip.MustParseAddr("203.0.113.1"), unknown}, // on another node
}

func startWatch(a *agent, k *kernel) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{a: a, end: cancel}
	first := w.look(k)
	n, err := loadNetwork()
	require.NoError(a.t, err)
	pod := n.device(podDevice).index
	guarded := func() (map[place]link.ID, error) {
		running := map[place]link.ID{}
		return running, queryPrograms(pod, running)
	}
	programs, err := guarded()
	require.NoError(a.t, err)
	require.Len(a.t, programs, 2)
	require.Empty(a.t, w.errors)
	for i, d := range first {
		require.Equal(a.t, steady[i].kind, d.kind, "%v", steady[i])
	}
	w.wait.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(time.Millisecond)
			for i, d := range w.look(k) {
				if d != first[i] {
					w.errors = append(w.errors, fmt.Errorf("%s to %s: %v, instead of %v", steady[i].src, steady[i].dst, d, first[i]))
				}
			}
			if now, err := guarded(); err != nil || !maps.Equal(now, programs) {
				w.errors = append(w.errors, err, fmt.Errorf("at the pod's device %v, instead of %v", now, programs))
			}
		}
	})
	a.t.Cleanup(func() { cancel(); w.wait.Wait() })
	return w
}

func (w *watch) look(k *kernel) (decisions []decision) {
	v, err := k.view()
	if err != nil {
		w.errors = append(w.errors, err)
		return nil
	}
	defer v.close()
	gateways, err := v.gateways.dump()
	if err != nil {
		return nil // it changed meanwhile
	}
	groups := map[uint32]ways{} // those of policies that come and go may be incomplete
	for key, value := range gateways {
		if groups[key.Group] == nil {
			groups[key.Group] = ways{}
		}
		groups[key.Group][value] = true
	}
	for _, p := range steady {
		d, err := v.decision(p.src, p.dst, groups)
		if err != nil {
			w.errors = append(w.errors, err)
		}
		decisions = append(decisions, d)
	}
	w.looks++
	return decisions
}

func (w *watch) stop() {
	w.a.t.Helper()
	w.end()
	w.wait.Wait()
	w.a.t.Logf("looked %d times at what must not change", w.looks)
	require.Greater(w.a.t, w.looks, kills)
	require.Empty(w.a.t, w.errors)
}
