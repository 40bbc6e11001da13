// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// attacher updates the rows of endpoints when rows of cni-attachments change. It covers
// interfaces whose file is read after the Pod. When the Pod is read later, the writer of
// endpoints looks up cni-attachments itself. Whichever transaction commits second sees
// the other's row, so no address is missed.
type attacher struct {
	db      *statedb.DB
	tables  objects.Tables
	changes statedb.ChangeIterator[*tables.CNIAttachment]
}

func (a *attacher) run(ctx context.Context, _ cell.Health) error {
	former := map[string]tables.Name{} // pods by file
	for {
		changed, watch := a.changes.Next(a.db.ReadTxn())
		pods := map[tables.Name]bool{}
		for change := range changed {
			row := change.Object
			pods[row.Pod] = true
			if pod, found := former[row.File]; found {
				pods[pod] = true
			}
			if former[row.File] = row.Pod; change.Deleted {
				delete(former, row.File)
			}
		}
		if err := a.tables.AttachAll(a.db, pods); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watch:
		}
	}
}
