// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// former finds the endpoints that went while no agent ran: nobody tells of them, but
// the maps that the former agent has left still have their addresses.
type former struct {
	watcher *watcher
	mirrors []statedb.TableMeta
	pods    statedb.ChangeIterator[*tables.PodEntry]
	sources statedb.ChangeIterator[*tables.SourceEntry]
}

// newFormer is called before the maps are read: it then knows of their entries also
// if they go at once.
func newFormer(w *watcher, pods statedb.Table[*tables.PodEntry], sources statedb.Table[*tables.SourceEntry]) (*former, error) {
	f := &former{watcher: w, mirrors: []statedb.TableMeta{pods, sources}}
	var err error
	if f.pods, err = tables.Follow(w.db, pods); err != nil {
		return nil, err
	}
	if f.sources, err = tables.Follow(w.db, sources); err != nil {
		f.pods.Close()
		return nil, err
	}
	return f, nil
}

// run has those addresses scrubbed that no endpoint has.
func (f *former) run(ctx context.Context, health cell.Health) error {
	defer f.pods.Close()
	defer f.sources.Close()
	w := f.watcher
	if !w.await(ctx, health, append(f.mirrors, w.endpoints)...) {
		return nil
	}
	gone := map[netip.Addr]struct{}{}
	add := func(a bpf.Address) {
		if addr := a.Addr(); addr.IsValid() && !w.owned(addr) {
			gone[addr] = struct{}{}
		}
	}
	pods, _ := f.pods.Next(w.db.ReadTxn())
	for change := range pods {
		add(change.Object.Key.Addr)
	}
	sources, _ := f.sources.Next(w.db.ReadTxn())
	for change := range sources {
		add(change.Object.Key.Addr)
	}
	for addr := range gone {
		w.runner.scrubs.add(addr)
	}
	health.OK(fmt.Sprintf("%d addresses were those of endpoints that had gone before the start", len(gone)))
	return nil
}
