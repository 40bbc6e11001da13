// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
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

// At least ten million refreshes, without those of the arms with evictions.
var lossArms = []lossArm{
	{"iterator", Iterator, false, 256, 4, unix.IPPROTO_TCP, false, 2},
	{"iterator, long map", Iterator, false, 8192, 6, unix.IPPROTO_UDP, false, 1},
	{"keys", Keys, false, 256, 4, unix.IPPROTO_UDP, false, 2},
	{"keys, IPv6", Keys, false, 128, 6, unix.IPPROTO_TCP, false, 1},
	{"iterator, same CPU", Iterator, true, 128, 4, unix.IPPROTO_ICMP, false, 2},
	{"iterator, same CPU, IPv6", Iterator, true, 64, 6, unix.IPPROTO_ICMPV6, false, 1},
	{"keys, same CPU", Keys, true, 128, 4, unix.IPPROTO_TCP, false, 1},
	{"iterator, evictions", Iterator, false, 128, 4, unix.IPPROTO_TCP, true, 1},
	{"iterator, evictions, same CPU", Iterator, true, 128, 4, unix.IPPROTO_TCP, true, 1},
}

const (
	lossMapRoom = 1 << 16 // so much that the kernel evicts nothing
	metOften    = 20      // times that an entry was used just when it was to be removed
)

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
	f.now += gctest.NowMin
	o.Maps = byName(f.Maps)
	o.Now = f.now
	g, err := gctest.NewGateway(o)
	require.NoError(t, err)
	t.Cleanup(g.Close)
	return g
}

// run has the gateway make the refreshes, while collect is called again and again.
// It goes on for longer if they have not met often enough by then, as far as that goes.
func (a lossArm) run(t *testing.T, g *gctest.Gateway, met *atomic.Uint64, collect func() error) gctest.Counts {
	first, second := twoCPUs(t)
	// Who returns from the kernel is not to wait for the scheduler of this process.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	var done atomic.Bool
	ended, bound := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- func() error {
			unbind, err := onCPU(first)
			close(bound)
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
	<-bound
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
	patience := time.Now().Add(4 * time.Second)
	for made := uint64(0); made < want || met.Load() < metOften && made < 3*want && time.Now().Before(patience); {
		if a.sameCPU {
			time.Sleep(10 * time.Millisecond)
		} else {
			require.NoError(t, g.Step(10000))
		}
		counts, err := g.Counts()
		require.NoError(t, err)
		made = counts.Refreshed + counts.Renewed
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

// No connection is lost that a packet has prolonged or begun, and no translation
// that a packet has used or made, while everything expires all the time.
//
// Where entries are evicted too, a few may be: between the look at what has the
// entry's key and its deletion, which no program can do at a stroke, another may have
// been evicted and made. The gateway evicts half a million times what the collection is at;
// the kernel evicts nothing that was just looked up. How many depends on how often the
// gateway comes in just there: of ten thousand connections removed, none to three on
// another CPU and up to eight on the same one, where it would be a hundred without that
// look. What is allowed is several times as much, for a busy machine.
func TestLoss(t *testing.T) {
	factor := uint64(1)
	if os.Getenv("SLUICE_TEST_LONG") == "1" {
		factor = 10
	}
	refreshes, revived := uint64(0), map[bool]uint64{}
	for _, a := range lossArms {
		a.refreshes *= factor
		t.Run(a.name, func(t *testing.T) {
			f := newFixtureOf(t, a.method, lossMapRoom, a.needs)
			sum, counts := a.collect(t, f)
			allowed := uint64(0)
			if a.evicts && a.sameCPU {
				allowed = 5 + sum.Expired/300
			} else if a.evicts {
				allowed = 5 + sum.Expired/2000
			}
			require.LessOrEqual(t, counts.Lost, allowed, "connections")
			require.LessOrEqual(t, counts.LostTranslations, allowed, "translations")
			revived[a.sameCPU] += sum.Revived
			require.NotZero(t, sum.Expired)
			require.NotZero(t, sum.Translations)
			require.Zero(t, sum.Deferred)
			if !a.evicts {
				require.Zero(t, sum.Failed)
			}
			f.flush()
			if !a.evicts {
				refreshes += counts.Refreshed + counts.Renewed
			}
		})
	}
	t.Logf("%d refreshes without evictions", refreshes)
	for sameCPU, n := range revived {
		require.NotZero(t, n, "nothing was used just when it was to be removed; same CPU: %v", sameCPU)
	}
}

// collect makes pass after pass while the gateway runs, and returns what they did.
func (a lossArm) collect(t *testing.T, f *fixture) (sum Pass, counts gctest.Counts) {
	g := newGateway(t, f, gctest.Options{Flows: a.flows, Family: a.family, Protocol: a.protocol, Translates: true, Evicts: a.evicts})
	events := uint64(0)
	filter := Filter{Expired: true, Orphans: true, Now: f.now + gctest.ClockAhead, Removed: func(Entry) { events++ }}
	passes, begun := 0, time.Now()
	var met atomic.Uint64
	counts = a.run(t, g, &met, func() error {
		all, err := f.Run(t.Context(), filter)
		for _, p := range all {
			sum.add(p)
			met.Add(p.Revived)
		}
		passes++
		return err
	})
	t.Logf("%d refreshes, %d translations used or made in %v; %d passes removed %d connections and %d translations, %d orphans; "+
		"revived %d; lost %d connections, %d translations",
		counts.Refreshed+counts.Renewed, counts.Used+counts.Recorded, time.Since(begun).Round(time.Millisecond),
		passes, sum.Expired, sum.Translations, sum.Orphans, sum.Revived, counts.Lost, counts.LostTranslations)
	require.Equal(t, sum.Removed(), events)
	return sum, counts
}

// The seed's way, to read entries and later to delete those that had expired, loses
// some: so the gateway sees losses.
func TestLossControl(t *testing.T) {
	a := lossArm{flows: 256, family: 4, protocol: unix.IPPROTO_TCP, refreshes: 1}
	f := newFixtureOf(t, Iterator, lossMapRoom, a.needs)
	g := newGateway(t, f, gctest.Options{Flows: a.flows, Family: a.family, Protocol: a.protocol, Translates: true})
	removed := 0
	var met atomic.Uint64
	met.Store(metOften) // which is not what this is about
	counts := a.run(t, g, &met, func() error {
		var expired []ctmap.Key4
		err := eachEntry(t.Context(), f.CT4TCP, &Pass{}, func(k ctmap.Key4, e ctmap.Entry) error {
			if e.Lifetime < f.now+gctest.ClockAhead {
				expired = append(expired, k)
			}
			return nil
		})
		for _, k := range expired {
			if err := f.CT4TCP.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
			if err := f.NAT4.Delete(natmap.NewKey4(k.Tuple())); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
			removed++
		}
		return err
	})
	t.Logf("%d refreshes; removed %d connections; lost %d connections, %d translations",
		counts.Refreshed+counts.Renewed, removed, counts.Lost, counts.LostTranslations)
	require.NotZero(t, counts.Lost)
	require.NotZero(t, counts.LostTranslations)
}
