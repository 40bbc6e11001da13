// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	remembered "github.com/sluice-net/sluice/tables/former"
)

// maxScrubbed is how many addresses one pass removes.
const maxScrubbed = 4096

// scrubs are addresses that somebody had, until a pass takes them.
type scrubs struct {
	mu    sync.Mutex
	addrs map[netip.Addr]struct{}
	wake  chan struct{}
}

// add returns at once.
func (s *scrubs) add(addrs ...netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	s.mu.Lock()
	for _, a := range addrs {
		s.addrs[a] = struct{}{}
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns addresses for one pass, and whether there are more.
func (s *scrubs) take() (addrs []netip.Addr, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.addrs {
		if len(addrs) == maxScrubbed {
			return addrs, true
		}
		addrs = append(addrs, a)
		delete(s.addrs, a)
	}
	return addrs, false
}

// watcher follows the endpoints: when they are known it enables the passes, and
// has addresses scrubbed that an endpoint loses.
type watcher struct {
	runner    *Runner
	db        *statedb.DB
	endpoints statedb.Table[*tables.Endpoint]
	nodes     statedb.Table[*tables.Node]

	// known has each endpoint as it was: what a changed row had before is not to be
	// learnt otherwise.
	known *remembered.Rows[*tables.Endpoint]

	// former returns the addresses that pods had when the agent before ended: some of them
	// may have gone since, and no row tells of that.
	former func() []netip.Addr
}

func newWatcher(r *Runner, db *statedb.DB, endpoints statedb.Table[*tables.Endpoint], nodes statedb.Table[*tables.Node]) *watcher {
	w := &watcher{
		runner: r, db: db, endpoints: endpoints, nodes: nodes, known: remembered.NewRows(endpoints.PrimaryIndexer()),
		former: func() []netip.Addr { return nil },
	}
	r.owned = w.owned
	return w
}

// owned reports whether an endpoint has an address.
func (w *watcher) owned(addr netip.Addr) bool {
	for range w.endpoints.List(w.db.ReadTxn(), tables.EndpointsByAddr(addr)) {
		return true
	}
	return false
}

// await waits for tables to be initialized. It returns false if the context ends.
func (w *watcher) await(ctx context.Context, health cell.Health, waited ...statedb.TableMeta) bool {
	for _, table := range waited {
		_, initialized := table.Initialized(w.db.ReadTxn())
		health.OK("Waiting for table " + table.Name())
		select {
		case <-initialized:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (w *watcher) run(ctx context.Context, health cell.Health) error {
	if !w.await(ctx, health, w.endpoints, w.nodes) {
		return nil
	}
	changes, err := tables.Follow(w.db, w.endpoints)
	if err != nil {
		return err
	}
	defer changes.Close()
	w.known.Reserve(w.endpoints.NumObjects(w.db.ReadTxn()))
	w.runner.scrubs.add(slices.DeleteFunc(slices.Clone(w.former()), w.owned)...)
	w.runner.Enable()
	health.OK("Following endpoints")
	for {
		some, more := changes.Next(w.db.ReadTxn())
		for change := range some {
			w.changed(change)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}

// changed has the addresses scrubbed that an endpoint does not have any more.
func (w *watcher) changed(change statedb.Change[*tables.Endpoint]) {
	e := change.Object
	if change.Deleted {
		if before, had := w.known.Forget(e); had {
			w.runner.scrubs.add(before.Addrs...)
		}
		w.runner.scrubs.add(e.Addrs...) // that it came and went with
		return
	}
	if before, had := w.known.Swap(e); had {
		w.runner.scrubs.add(slices.DeleteFunc(slices.Clone(before.Addrs), func(a netip.Addr) bool {
			return slices.Contains(e.Addrs, a)
		})...)
	}
}
