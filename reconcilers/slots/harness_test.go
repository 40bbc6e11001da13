// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a node in a synctest bubble, whose maps are in memory. Time passes only while all
// goroutines wait.
type world struct {
	t      *testing.T
	memory *bpf.Memory
}

func inBubble(t *testing.T, test func(*world)) {
	synctest.Test(t, func(t *testing.T) { test(&world{t, bpf.NewMemory()}) })
}

// agent is one with maps, and with what this package does.
type agent struct {
	*world
	*flipper
	links      chan struct{} // closed when the links are known
	generation *Generation
	slots      tablestest.Table[*tables.Slot]
	locals     tablestest.Table[*tables.LocalEndpoint]
	pods       tablestest.Table[*tables.Pod]
	attached   tablestest.Table[*tables.Attachment]
	health     *cell.SimpleHealth
	finds      bool // devices
	stop       func()

	mu      sync.Mutex
	logged  bytes.Buffer
	entries int64
	mapName string
	known   bool
}

// start starts an agent that knows the links, and not yet what is desired.
func (w *world) start() *agent {
	a := &agent{world: w, links: make(chan struct{})}
	log := slog.New(slog.NewTextHandler(a, nil))
	var maps *bpf.Maps
	h := hive.New(bpf.Cell, cell.Provide(func() bpf.Backend { return w.memory }),
		cell.Invoke(func(m *bpf.Maps) { maps = m }))
	require.NoError(w.t, h.Start(log, w.t.Context()))

	db := statedb.New()
	a.slots = tablestest.Open(w.t, db, tables.NewSlotTable)
	a.locals = tablestest.Open(w.t, db, tables.NewLocalEndpointTable)
	a.pods = tablestest.Open(w.t, db, tables.NewPodTable)
	a.attached = tablestest.Open(w.t, db, tables.NewAttachmentTable)
	wtxn := db.WriteTxn(a.slots)
	a.flipper = &flipper{
		params: params{
			Log: log, DB: db, Maps: maps, Slots: a.slots, Attachments: a.attached,
			Locals: a.locals, Pods: a.pods,
		},
		linksKnown:   a.links,
		unwritten:    a.left,
		findsDevices: func() bool { return a.finds },
		flipped:      a.slots.RegisterInitializer(wtxn, "test"),
	}
	wtxn.Commit()
	a.generation = &Generation{
		maps: maps, retry: make(chan struct{}, 1), later: make(chan struct{}, 1),
	}

	health, simple := cell.NewSimpleHealth()
	a.health = simple
	ctx, cancel := context.WithCancel(w.t.Context())
	var jobs sync.WaitGroup
	for name, run := range map[string]func(context.Context, cell.Health) error{
		"flip": a.run, "raise": a.generation.run,
	} {
		jobs.Go(func() {
			if err := run(ctx, health.NewScope(name)); err != nil {
				w.t.Errorf("%s: %v", name, err)
			}
		})
	}
	a.stop = sync.OnceFunc(func() {
		cancel()
		jobs.Wait()
		require.NoError(w.t, h.Stop(log, context.Background()))
	})
	w.t.Cleanup(a.stop)
	return a
}

// startFlipped starts an agent whose slot is active.
func (w *world) startFlipped() *agent {
	a := w.start()
	close(a.links)
	a.leaves(0, "", true)
	a.pass(time.Second)
	a.requireFlipped()
	return a
}

// leaves says what is not written yet.
func (a *agent) leaves(entries int64, mapName string, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.entries, a.mapName, a.known = entries, mapName, known
}

func (a *agent) left() (int64, string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.entries, a.mapName, a.known
}

// Write implements [io.Writer], for the log.
func (a *agent) Write(line []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.logged.Write(line)
}

// log returns what the agent has logged.
func (a *agent) log() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.logged.String()
}

// failure returns why a job is degraded, nil if it is not.
func (a *agent) failure(job string) error {
	h := a.health.GetChild(job)
	h.Lock()
	defer h.Unlock()
	return h.Error
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// requireFlipped asserts that the agent's slot is active, and that the table says so.
func (a *agent) requireFlipped() {
	a.t.Helper()
	own, _ := a.requireOwnSlot(true)
	a.requireRow(&tables.Slot{Number: own, Use: tables.SlotInForce, Own: true})
}

// requireWaits asserts that the agent's slot is not active, and what the table says that
// it waits for.
func (a *agent) requireWaits(what string) {
	a.t.Helper()
	own, active := a.requireOwnSlot(false)
	a.requireRow(&tables.Slot{Number: own, Use: tables.SlotFilled, Own: true, WaitsFor: what})
	a.requireRow(&tables.Slot{Number: active, Use: tables.SlotInForce})
}

// requireOwnSlot asserts whether the agent's slot is active; the table is initialized if so.
func (a *agent) requireOwnSlot(isActive bool) (own, active uint32) {
	a.t.Helper()
	active, own, err := a.Maps.Slot()
	require.NoError(a.t, err)
	require.Equal(a.t, isActive, own == active)
	initialized, _ := a.slots.Initialized(a.DB.ReadTxn())
	require.Equal(a.t, isActive, initialized)
	return own, active
}

func (a *agent) requireRow(want *tables.Slot) {
	a.t.Helper()
	row, _, _ := a.slots.Get(a.DB.ReadTxn(), tables.SlotByNumber(want.Number))
	require.Equal(a.t, want, row)
}

// current returns the generation.
func (a *agent) current() uint32 {
	a.t.Helper()
	generation, err := a.Maps.Generation()
	require.NoError(a.t, err)
	return generation
}
