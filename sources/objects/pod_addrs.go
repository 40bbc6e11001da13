// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// GivePodsAddrs returns a job that gives pods the addresses that rows of a table have
// of them, when these change. It covers rows that come after the pod. When the pod
// comes later, its writer looks up the table itself: whichever transaction commits
// second sees the other's row, so no address is missed.
func GivePodsAddrs[Row any](
	db *statedb.DB, t Tables, from statedb.Table[Row], podsOf func(Row) []tables.Name,
) (func(context.Context, cell.Health) error, error) {
	changes, err := tables.Follow(db, from)
	if err != nil {
		return nil, err
	}
	former := map[string][]tables.Name{} // pods by the keys of rows
	return func(ctx context.Context, _ cell.Health) error {
		for {
			changed, watch := changes.Next(db.ReadTxn())
			pods := map[tables.Name]bool{}
			for change := range changed {
				key := string(from.PrimaryIndexer().ObjectToKey(change.Object))
				now := podsOf(change.Object)
				for _, list := range [][]tables.Name{former[key], now} {
					for _, pod := range list {
						pods[pod] = true
					}
				}
				if former[key] = now; change.Deleted || len(now) == 0 {
					delete(former, key)
				}
			}
			if err := t.giveAddrs(db, pods); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return nil
			case <-watch:
			}
		}
	}, nil
}

// giveAddrs gives pods the addresses that are known of them now.
func (t *Tables) giveAddrs(db *statedb.DB, pods map[tables.Name]bool) error {
	if len(pods) == 0 {
		return nil
	}
	wtxn := db.WriteTxn(t.Endpoints)
	defer wtxn.Abort()
	changed := false
	for pod := range pods {
		e, _, found := t.Endpoints.Get(wtxn, tables.EndpointByName(pod))
		if !found {
			continue
		}
		with := t.withAddrs(wtxn, e)
		if with == e {
			continue
		}
		if _, _, err := t.Endpoints.Insert(wtxn, with); err != nil {
			return err
		}
		changed = true
	}
	if changed {
		wtxn.Commit()
	}
	return nil
}
