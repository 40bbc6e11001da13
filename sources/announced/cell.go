// SPDX-License-Identifier: Apache-2.0

// Package announced gives pods of other nodes their addresses before their status has
// them: the agent of a pod's node announces these when the CNI plugin has told of them.
//
//	backend-slices, of the agents' namespace ──► addresses of endpoints
package announced

import (
	"context"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// Cell follows what agents announce, if endpoints are made from Pods.
var Cell = cell.Module(
	"announced",
	"Addresses of pods announced by the agents of their nodes",

	cell.Invoke(register),
)

type params struct {
	cell.In

	Objects objects.Config
	DB      *statedb.DB
	Jobs    job.Group
	Tables  objects.Tables
}

func register(p params) error {
	if p.Objects.EndpointSource != objects.EndpointsKubernetes {
		return nil
	}
	changes, err := tables.Follow(p.DB, p.Tables.BackendSlices.ToTable())
	if err != nil {
		return err
	}
	f := &follower{db: p.DB, tables: p.Tables, changes: changes}
	p.Jobs.Add(job.OneShot("give-pods-announced-addresses", f.run, job.WithShutdown()))
	return nil
}

// follower gives pods the addresses that are announced after the pods. Those of pods
// that come later are looked up when the pod's row is written: of the two transactions
// the second one sees both.
type follower struct {
	db      *statedb.DB
	tables  objects.Tables
	changes statedb.ChangeIterator[*tables.BackendSlice]
}

func (f *follower) run(ctx context.Context, _ cell.Health) error {
	before := map[tables.Name][]tables.PodAddrs{} // by slice
	for {
		changed, watch := f.changes.Next(f.db.ReadTxn())
		pods := map[tables.Name]bool{}
		for change := range changed {
			row := change.Object
			if row.Namespace != string(f.tables.Namespace) {
				continue
			}
			for _, p := range slices.Concat(before[row.Name], row.Pods) {
				pods[p.Pod] = true
			}
			if change.Deleted || len(row.Pods) == 0 {
				delete(before, row.Name)
			} else {
				before[row.Name] = row.Pods
			}
		}
		if err := f.tables.AttachAll(f.db, pods); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watch:
		}
	}
}
