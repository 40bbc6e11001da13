// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf/datapath"
	"github.com/sluice-net/sluice/tables"
)

// watcher has programs attached anew to a device that was replaced by one of the
// same index and name, or lost its links by a move to another network namespace
// and back: what is wanted does not change by that.
type watcher struct {
	db          *statedb.DB
	devices     statedb.Table[*tables.Device]
	attachments statedb.RWTable[*tables.Attachment]
	links       func() links
	datapath    *datapath.Datapath
}

func (w *watcher) run(ctx context.Context, _ cell.Health) error {
	var seen statedb.Revision
	for {
		changed, watch := w.devices.LowerBoundWatch(w.db.ReadTxn(), statedb.ByRevision[*tables.Device](seen+1))
		for device, revision := range changed {
			seen = revision
			if err := w.check(device); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watch:
		}
	}
}

// check has the attachments of a device reconciled whose links do not work.
func (w *watcher) check(d *tables.Device) error {
	if !w.datapath.Loaded() {
		return nil
	}
	var dead []*tables.Attachment
	for row := range w.attachments.List(w.db.ReadTxn(), tables.AttachmentsByDevice(d.Index)) {
		if row.Status.Kind != reconciler.StatusKindDone {
			continue
		}
		if a, err := w.links().loadTCX(row.IfIndex, row.Program); err == nil && a == nil {
			dead = append(dead, row)
		} else if err == nil {
			a.Close()
		}
	}
	if len(dead) == 0 {
		return nil
	}
	wtxn := w.db.WriteTxn(w.attachments)
	defer wtxn.Abort()
	for _, row := range dead {
		if now, _, found := w.attachments.Get(wtxn, tables.AttachmentByID(row.ID())); found && now == row {
			if _, _, err := w.attachments.Insert(wtxn, tables.WithStatus(row, reconciler.StatusPending())); err != nil {
				return err
			}
		}
	}
	wtxn.Commit()
	return nil
}
