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
)

// maxReleased is how many addresses one pass removes.
const maxReleased = 4096

// releasedAddrs are addresses that pods no longer have, until a pass takes them.
type releasedAddrs struct {
	mu    sync.Mutex
	addrs map[netip.Addr]struct{}
	wake  chan struct{}
}

// add returns at once.
func (s *releasedAddrs) add(addrs ...netip.Addr) {
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
func (s *releasedAddrs) take() (addrs []netip.Addr, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.addrs {
		if len(addrs) == maxReleased {
			return addrs, true
		}
		addrs = append(addrs, a)
		delete(s.addrs, a)
	}
	return addrs, false
}

// RemoveReleased has the connections of addresses removed that no endpoint has, soon.
func (r *Runner) RemoveReleased(addrs []netip.Addr) { r.released.add(addrs...) }

// watcher enables the passes when the endpoints are known.
type watcher struct {
	runner    *Runner
	db        *statedb.DB
	endpoints statedb.Table[*tables.Endpoint]
	nodes     statedb.Table[*tables.Node]

	// former returns the addresses that pods had when the previous agent ended: some pods
	// may have gone since, and no row shows that.
	former func() []netip.Addr
}

func newWatcher(
	r *Runner, db *statedb.DB, endpoints statedb.Table[*tables.Endpoint],
	nodes statedb.Table[*tables.Node],
) *watcher {
	w := &watcher{
		runner: r, db: db, endpoints: endpoints, nodes: nodes,
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

func (w *watcher) run(ctx context.Context, health cell.Health) error {
	for _, table := range []statedb.TableMeta{w.endpoints, w.nodes} {
		health.OK("Waiting for table " + table.Name())
		if !tables.AwaitInitialized(ctx, w.db, table) {
			return nil
		}
	}
	w.runner.RemoveReleased(slices.DeleteFunc(slices.Clone(w.former()), w.owned))
	w.runner.Enable()
	health.OK("The endpoints are known")
	return nil
}
