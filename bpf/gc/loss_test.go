// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc/gctest"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// lossArm is a gateway and a collection that work on the same flows at the same time.
type lossArm struct {
	name      string
	method    Method
	sameCPU   bool // the gateway interrupts the collection, instead of running beside it
	flows     uint32
	family    uint16
	protocol  uint8
	evicts    bool
	refreshes uint64 // of connections, in millions
}

func lossArms() []lossArm {
	return []lossArm{
		{"iterator", Iterator, false, 256, 4, unix.IPPROTO_TCP, false, 2},
		{"iterator, long map", Iterator, false, 8192, 6, unix.IPPROTO_UDP, false, 1},
		{"iterator, evictions", Iterator, false, 128, 4, unix.IPPROTO_TCP, true, 1},
		{"for-each", ForEach, false, 128, 6, unix.IPPROTO_TCP, false, 2},
		{"iterator, same CPU", Iterator, true, 128, 4, unix.IPPROTO_ICMP, false, 2},
		{"for-each, same CPU", ForEach, true, 64, 4, unix.IPPROTO_TCP, false, 1},
		{"iterator, evictions, same CPU", Iterator, true, 128, 4, unix.IPPROTO_TCP, true, 1},
	}
}

const lossMapRoom = 1 << 16 // so much that the kernel evicts nothing

// onCPU binds the calling goroutine to a CPU.
func onCPU(cpu int) (unbind func(), err error) {
	var before, only unix.CPUSet
	runtime.LockOSThread()
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return nil, err
	}
	only.Set(cpu)
	if err := unix.SchedSetaffinity(0, &only); err != nil {
		return nil, err
	}
	// Also where others keep the CPU busy.
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -15); err != nil {
		return nil, err
	}
	return func() {
		unix.Setpriority(unix.PRIO_PROCESS, 0, 0)
		unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	}, nil
}

// twoCPUs returns two CPUs that the test may use.
func twoCPUs(t *testing.T) (first, second int) {
	var set unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &set))
	var cpus []int
	for i := range 1024 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	if len(cpus) < 2 {
		t.Skip("needs two CPUs")
	}
	return cpus[0], cpus[1]
}

// needs reports whether the flows are in a map, or their translations.
func (a lossArm) needs(name string) bool {
	return name == ctmap.CTName(a.family == 6, a.protocol) || name == natmap.Name4 && a.family == 4 || name == natmap.Name6 && a.family == 6
}

func newGateway(t *testing.T, f *fixture, o gctest.Options) *gctest.Gateway {
	o.Maps = byName(f.Maps)
	o.Now = f.now
	g, err := gctest.NewGateway(o)
	require.NoError(t, err)
	t.Cleanup(g.Close)
	return g
}

// run has the gateway make the refreshes, while collect is called again and again.
func (a lossArm) run(t *testing.T, g *gctest.Gateway, collect func() error) gctest.Counts {
	first, second := twoCPUs(t)
	// Who returns from the kernel is not to wait for the scheduler of this process.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	var done atomic.Bool
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			unbind, err := onCPU(first)
			if err != nil {
				return err
			}
			defer unbind()
			for !done.Load() {
				if err := collect(); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	gatewayCPU := second
	if a.sameCPU {
		gatewayCPU = first
	}
	unbind, err := onCPU(gatewayCPU)
	require.NoError(t, err)
	if a.sameCPU {
		require.NoError(t, g.Pulse(15*time.Microsecond, 48))
		unbind()
		unbind, err = onCPU(second)
		require.NoError(t, err)
	}
	defer unbind()
	want := a.refreshes * 1e6
	for counts := (gctest.Counts{}); counts.Refreshed+counts.Renewed < want; {
		if a.sameCPU {
			time.Sleep(10 * time.Millisecond)
		} else {
			require.NoError(t, g.Step(10000))
		}
		counts, err = g.Counts()
		require.NoError(t, err)
		select {
		case err := <-ended:
			require.NoError(t, err)
		default:
		}
	}
	if a.sameCPU {
		require.NoError(t, g.StopPulse())
	}
	done.Store(true)
	require.NoError(t, <-ended)
	require.NoError(t, g.Check())
	counts, err := g.Counts()
	require.NoError(t, err)
	return counts
}

func TestLoss(t *testing.T) {
	factor := uint64(1)
	if os.Getenv("SLUICE_TEST_LONG") == "1" {
		factor = 10
	}
	for _, a := range lossArms() {
		a.refreshes *= factor
		t.Run(a.name, func(t *testing.T) {
			f := newFixtureOf(t, a.method, lossMapRoom, a.needs)
			g := newGateway(t, f, gctest.Options{Flows: a.flows, Family: a.family, Protocol: a.protocol, Translates: true, Evicts: a.evicts})
			filter := Filter{Expired: true, Orphans: true, Now: f.now + gctest.ClockAhead}
			var sum Pass
			var passes int
			begun := time.Now()
			counts := a.run(t, g, func() error {
				all, err := f.Run(t.Context(), filter)
				for _, p := range all {
					sum.add(p)
				}
				passes++
				return err
			})
			took := time.Since(begun)
			t.Logf("%v: %d passes removed %d connections, %d pairs' records, %d orphans; revived %d, condemned %d, failed %d; gateway: %+v",
				took, passes, sum.Expired, sum.Translations, sum.Orphans, sum.Revived, sum.Condemned, sum.Failed, counts)
			require.Zero(t, counts.Lost)
			require.Zero(t, counts.LostTranslations)
			require.NotZero(t, sum.Revived)
		})
	}
}
