// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// reports reads the NodeReports of all nodes while this agent leads: one agent
// follows what all write, not each of them. Meanwhile they have a row in table
// object-sources; at other times they have none, and table node-reports is empty.
type reports struct {
	params
	api  api
	kind *objects.Kind
}

func (r *reports) run(ctx context.Context, health cell.Health) error {
	for ctx.Err() == nil {
		leads, changed := r.leads()
		if !leads {
			health.OK("Another agent reads them")
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if err := r.follow(ctx, health, changed); err != nil {
			return err
		}
	}
	return nil
}

// leads reports whether this agent leads, and returns a channel that closes when
// that may have changed.
func (r *reports) leads() (bool, <-chan struct{}) {
	txn := r.DB.ReadTxn()
	_, changed := r.Leadership.AllWatch(txn)
	return tables.Leads(txn, r.Leadership), changed
}

// follow keeps table node-reports until this agent leads no more, and empties it.
func (r *reports) follow(ctx context.Context, health cell.Health, changed <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for leads := true; leads; leads, changed = r.leads() {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
		cancel()
	}()
	if err := reflectorOf(r.params, r.api, r.kind, func(statedb.WriteTxn) {}).run(ctx, health); err != nil {
		return err
	}
	wtxn := r.DB.WriteTxn(r.Tables.NodeReports, r.Tables.Sources)
	defer wtxn.Abort()
	if err := r.Tables.NodeReports.DeleteAll(wtxn); err != nil {
		return err
	}
	if _, _, err := r.Tables.Sources.Delete(wtxn, &tables.ObjectSource{Source: r.kind.Source()}); err != nil {
		return err
	}
	wtxn.Commit()
	return nil
}
