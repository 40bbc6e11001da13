// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
	"github.com/sluice-net/sluice/bpf/natmap"
	"github.com/sluice-net/sluice/tables"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// size is the room of each map of a fakeCollector.
const size = 1000

// fakeCollector is a set of maps of which only the numbers are there.
type fakeCollector struct {
	mu        sync.Mutex
	counts    map[string]int
	runs      []run
	err       error // of passes
	counted   int
	uncounted error // of counts
	fullest   []gc.Ports

	// during, if not nil, is called in each pass, and is what it comes to.
	during func(gc.Filter) []gc.Pass
	closed bool
}

// run is a pass through a fakeCollector.
type run struct {
	at     time.Time
	filter gc.Filter
}

func (c *fakeCollector) Run(ctx context.Context, f gc.Filter) ([]gc.Pass, error) {
	c.mu.Lock()
	c.runs = append(c.runs, run{time.Now(), f})
	during, err := c.during, c.err
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if during != nil {
		passes := during(f)
		return passes, ctx.Err()
	}
	return c.pass(0, 0), nil
}

// pass is a pass that sees all entries of the map of TCP over IPv4, and removes some.
func (c *fakeCollector) pass(expired int, next uint32) []gc.Pass {
	c.mu.Lock()
	defer c.mu.Unlock()
	scanned := c.counts[ctmap.CT4TCP]
	c.counts[ctmap.CT4TCP] -= expired
	return []gc.Pass{
		{Map: ctmap.CT4TCP, Method: gc.Iterator, Scanned: uint64(scanned), Expired: uint64(expired), NextExpiry: next, LongestRun: time.Millisecond},
		{Map: ctmap.CT6TCP, Method: gc.Iterator},
	}
}

func (c *fakeCollector) Flush(_ context.Context, chosen func(gc.Entry) bool, removed func(gc.Entry)) ([]gc.Pass, error) {
	if e := removal("10.0.0.9"); chosen(e) && removed != nil {
		removed(e)
	}
	return []gc.Pass{{Map: ctmap.CT4TCP, Method: gc.Keys, Scanned: 1, Flushed: 1}}, nil
}

func (c *fakeCollector) Count() (gc.Counts, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counted++
	if c.uncounted != nil {
		return gc.Counts{}, c.uncounted
	}
	counts := gc.Counts{Now: clock(), Entries: map[string]int{}}
	for name, n := range c.counts {
		counts.Entries[name] = n
	}
	return counts, nil
}

func (c *fakeCollector) Fullest() []gc.Ports {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fullest
}

func (c *fakeCollector) Close() error { c.closed = true; return nil }

// clock is that of the maps.
func clock() uint32 { return uint32(time.Now().Unix()) }

// set sets how many entries a map has.
func (c *fakeCollector) set(name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[name] = n
}

// does sets what passes do.
func (c *fakeCollector) does(during func(gc.Filter) []gc.Pass) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.during = during
}

func (c *fakeCollector) failCounts(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uncounted = err
}

func (c *fakeCollector) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// takeRuns returns the passes since it was last called.
func (c *fakeCollector) takeRuns() []run {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs := c.runs
	c.runs = nil
	return runs
}

// world is a runner in a bubble of time.
type world struct {
	*fakeCollector
	t         *testing.T
	runner    *Runner
	db        *statedb.DB
	former    []netip.Addr // addresses of pods when the agent before ended
	endpoints statedb.RWTable[*tables.Endpoint]
	nodes     statedb.RWTable[*tables.Node]
	runs      statedb.RWTable[*tables.CTGCRun]
	ready     []func(statedb.WriteTxn) // completes endpoints and nodes
	health    *fakeHealth
	shown     [][]tables.BPFMap
	unshown   error // of what is to be shown
	packets   atomic.Uint64
	stop      context.CancelFunc
	opening   error
}

// inBubble runs a test with a runner whose endpoints are known, unless it says
// otherwise. No time passes but that which something waits for.
func inBubble(t *testing.T, cfg Config, test func(*world)) { inBubbleWith(t, cfg, nil, test) }

// inBubbleWith is inBubble where the maps cannot be opened at first.
func inBubbleWith(t *testing.T, cfg Config, opening error, test func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, cfg, opening)
		defer func() {
			w.stop()
			synctest.Wait()
		}()
		test(w)
	})
}

func newWorld(t *testing.T, cfg Config, opening error) *world {
	w := &world{
		opening: opening,
		t:       t, db: statedb.New(), health: &fakeHealth{},
		fakeCollector: &fakeCollector{counts: map[string]int{}},
	}
	var err error
	w.endpoints, err = tables.NewEndpointTable(w.db, tables.LocalNode{})
	require.NoError(t, err)
	w.nodes, err = tables.NewNodeTable(w.db)
	require.NoError(t, err)
	w.runs, err = tables.NewCTGCRunTable(w.db)
	require.NoError(t, err)
	wtxn := w.db.WriteTxn(w.endpoints, w.nodes)
	w.ready = append(w.ready, w.endpoints.RegisterInitializer(wtxn, "test"), w.nodes.RegisterInitializer(wtxn, "test"))
	wtxn.Commit()

	r := newRunner()
	r.log = slog.New(slog.DiscardHandler)
	r.loaded = func() bool { return true }
	r.open = func() (*set, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.newSet(cfg), w.opening
	}
	r.clusters = func(sets []*set) ([]*set, error) { return sets, nil }
	r.fragments = func() ([]tables.BPFMap, error) { return nil, nil }
	r.packets = func() uint64 { return w.packets.Load() }
	r.reporter = &reporter{
		log: r.log, db: w.db, runs: w.runs, metrics: newMetrics(),
		maps: func(rows ...tables.BPFMap) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.shown = append(w.shown, rows)
			return w.unshown
		},
	}
	w.runner = r
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	watcher := newWatcher(r, w.db, w.endpoints, w.nodes)
	watcher.former = func() []netip.Addr { return w.former }
	go r.run(ctx, w.health)
	go watcher.run(ctx, &fakeHealth{})
	return w
}

func (w *world) newSet(cfg Config) *set {
	s := &set{
		name: globalSet, collector: w.fakeCollector, sizes: map[string]uint32{},
		schedule: newSchedule(cfg.CTGCInterval, cfg.CTGCMaxInterval),
	}
	for _, name := range []string{ctmap.CT4TCP, ctmap.CT4Any, ctmap.CT6TCP, ctmap.CT6Any, natmap.Name4, natmap.Name6} {
		s.sizes[name] = size
	}
	return s
}

// canOpen has the maps opened from now on.
func (w *world) canOpen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opening = nil
}

// know has the endpoints known.
func (w *world) know() {
	wtxn := w.db.WriteTxn(w.endpoints, w.nodes)
	for _, ready := range w.ready {
		ready(wtxn)
	}
	wtxn.Commit()
	synctest.Wait()
}

// wait lets time pass, with all that happens in it.
func (w *world) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// rows returns the rows of ct-gc-runs.
func (w *world) rows() []*tables.CTGCRun { return statedb.Collect(w.runs.All(w.db.ReadTxn())) }

// reasons returns those of the passes, and forgets the passes.
func (w *world) reasons() (reasons []string) {
	wtxn := w.db.WriteTxn(w.runs)
	defer wtxn.Abort()
	for _, row := range w.rows() {
		reasons = append(reasons, row.Reason)
		w.runs.Delete(wtxn, row)
	}
	wtxn.Commit()
	return reasons
}

// pod makes an endpoint have addresses; without any it is removed.
func (w *world) pod(n int, addrs ...string) {
	wtxn := w.db.WriteTxn(w.endpoints)
	defer wtxn.Abort()
	e := &tables.Endpoint{Name: tables.Name{Namespace: "default", Name: fmt.Sprintf("pod-%d", n)}, LabelSet: &tables.LabelSet{}}
	for _, a := range addrs {
		e.Addrs = append(e.Addrs, netip.MustParseAddr(a))
	}
	var before *tables.Endpoint
	var had bool
	var err error
	if len(addrs) == 0 {
		before, had, err = w.endpoints.Delete(wtxn, e)
	} else {
		before, had, err = w.endpoints.Insert(wtxn, e)
	}
	require.NoError(w.t, err)
	wtxn.Commit()
	if had {
		w.runner.RemoveReleased(slices.DeleteFunc(slices.Clone(before.Addrs), func(a netip.Addr) bool {
			return slices.Contains(e.Addrs, a)
		}))
	}
}

// metric returns the sum of a counter or gauge whose labels have some values.
func (w *world) metric(name string, labels ...string) (sum float64) {
	r := prometheus.NewPedanticRegistry()
	require.NoError(w.t, tables.RegisterMetrics(r, w.runner.reporter.metrics.all()...))
	families, err := r.Gather()
	require.NoError(w.t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			missing := slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(values, l) })
			if family.GetName() == name && !missing {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// removal is the removal of a connection of a pod.
func removal(addr string) gc.Entry {
	a := netip.MustParseAddr(addr)
	return gc.Entry{
		Map: ctmap.CT4TCP, CT: &ctmap.Entry{Packets: 7}, Reason: gc.Expired,
		Tuple: ctmap.Tuple{Source: netip.AddrPortFrom(a, 1), Destination: netip.AddrPortFrom(a, 2)},
	}
}

// fakeHealth remembers the last report.
type fakeHealth struct {
	mu    sync.Mutex
	level cell.Level
	text  string
}

func (h *fakeHealth) report(level cell.Level, text string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.level, h.text = level, text
	if err != nil {
		h.text += ": " + err.Error()
	}
}

func (h *fakeHealth) last() (cell.Level, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.level, h.text
}

func (h *fakeHealth) OK(text string)                  { h.report(cell.StatusOK, text, nil) }
func (h *fakeHealth) Degraded(text string, err error) { h.report(cell.StatusDegraded, text, err) }
func (h *fakeHealth) Stopped(text string)             { h.report(cell.StatusStopped, text, nil) }
func (h *fakeHealth) NewScope(string) cell.Health     { return h }
func (h *fakeHealth) Close()                          {}

var errTest = errors.New("test error")

// gaps returns the time between passes.
func gaps(runs []run) (gaps []time.Duration) {
	for i := range runs[:max(0, len(runs)-1)] {
		gaps = append(gaps, runs[i+1].at.Sub(runs[i].at))
	}
	return slices.Clip(gaps)
}
