// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

const (
	maxDrops      = 4096                   // rows of the table
	maxPending    = 1024                   // senders and receivers told apart between two writes
	writeInterval = 100 * time.Millisecond // from one write to the next
)

// recorder counts drops and writes the counts to the table drops, all that came
// meanwhile at once: a flood costs an addition a packet.
type recorder struct {
	db       *statedb.DB
	table    statedb.RWTable[*tables.Drop]
	enricher *enricher
	maxRows  int

	mu      sync.Mutex
	pending map[pendingKey]*pendingDrop
	wake    chan struct{}
}

// pendingKey is what the kernel says of a drop that its row may depend on. The
// address is the one on the side of the pod.
type pendingKey struct {
	addr      bpf.Address
	ifIndex   uint32
	direction bpf.Direction
	reason    bpf.Reason
}

type pendingDrop struct {
	count uint64
	last  bpf.Event
	many  bool // of senders and receivers that are not told apart
}

func newRecorder(db *statedb.DB, table statedb.RWTable[*tables.Drop], e *enricher) *recorder {
	return &recorder{
		db: db, table: table, enricher: e, maxRows: maxDrops,
		pending: map[pendingKey]*pendingDrop{}, wake: make(chan struct{}, 1),
	}
}

// add counts a drop.
func (r *recorder) add(e *bpf.Event) {
	r.enricher.remember(e)
	key := pendingKey{addr: e.Source, ifIndex: e.IfIndex, direction: e.Direction, reason: e.Reason}
	if e.Direction == bpf.DirectionIngress {
		key.addr = e.Destination
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d, ok := r.pending[key]
	if !ok && len(r.pending) >= maxPending {
		key = pendingKey{direction: e.Direction, reason: e.Reason}
		d, ok = r.pending[key]
	}
	if !ok {
		d = &pendingDrop{many: key.addr == bpf.Address{} && key.ifIndex == 0}
		r.pending[key] = d
	}
	d.count++
	d.last = *e
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run writes counts until the context ends.
func (r *recorder) run(ctx context.Context, _ cell.Health) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		if err := r.write(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(writeInterval):
		}
	}
}

// write adds what was counted to the table.
func (r *recorder) write() error {
	r.mu.Lock()
	pending := r.pending
	r.pending = map[pendingKey]*pendingDrop{}
	r.mu.Unlock()

	rows := make([]*tables.Drop, 0, len(pending))
	for _, d := range pending {
		rows = append(rows, r.row(d))
	}
	slices.SortFunc(rows, func(a, b *tables.Drop) int { return a.Last.Compare(b.Last) })

	wtxn := r.db.WriteTxn(r.table)
	defer wtxn.Abort()
	for _, row := range rows {
		if old, _, ok := r.table.Get(wtxn, tables.DropByKey(row.Key())); ok {
			row.Count += old.Count
		}
		if _, _, err := r.table.Insert(wtxn, row); err != nil {
			return err
		}
	}
	if err := r.evict(wtxn); err != nil {
		return err
	}
	wtxn.Commit()
	return nil
}

func (r *recorder) row(d *pendingDrop) *tables.Drop {
	e := r.enricher.enrich(&d.last)
	row := &tables.Drop{
		Pod: e.Pod, Direction: e.Direction, Reason: e.Reason, Count: d.count,
		Policy: e.Policy, Packet: e.Packet(), Last: e.Time,
	}
	switch d.last.Reason { // the rules of other drops are those that had allowed the packet
	case bpf.ReasonPolicyDenied, bpf.ReasonPolicyRule:
		row.Policy = strings.Join(e.Rules, ", ")
	}
	if d.many {
		row.Pod = ""
	}
	return row
}

// evict removes the rows without a drop for the longest time until there is room.
func (r *recorder) evict(wtxn statedb.WriteTxn) error {
	excess := r.table.NumObjects(wtxn) - r.maxRows
	if excess <= 0 {
		return nil
	}
	for row := range r.table.LowerBound(wtxn, tables.DropsByLast(time.Unix(0, 0))) {
		if excess == 0 {
			return nil
		}
		if _, _, err := r.table.Delete(wtxn, row); err != nil {
			return err
		}
		excess--
	}
	return nil
}
