// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// floorTables is how many rows the agent writes for a pod whose labels policies know:
// the pod, its class, its address, what became of that, and what the kernel has.
const floorTables = 5

// floorRow is a row of which nothing is computed.
type floorRow struct{ id, group int }

func (*floorRow) TableHeader() []string { return []string{"ID"} }
func (r *floorRow) TableRow() []string  { return []string{fmt.Sprint(r.id)} }

var (
	floorID = statedb.Index[*floorRow, int]{
		Name: "id", Unique: true, FromKey: index.Int, FromString: index.IntString,
		FromObject: func(r *floorRow) index.KeySet { return index.NewKeySet(index.Int(r.id)) },
	}
	floorGroup = statedb.Index[*floorRow, int]{
		Name: "group", FromKey: index.Int, FromString: index.IntString,
		FromObject: func(r *floorRow) index.KeySet { return index.NewKeySet(index.Int(r.group)) },
	}
)

// floor measures what a pod of a known class costs before anything is computed for it:
// as many rows, each of which follows from another one in a goroutine of its own, and
// a write to a map. The tables are as large as that of the pods.
func (b *policyBench) floor(samples int) error {
	db := statedb.New()
	all := make([]statedb.RWTable[*floorRow], floorTables)
	for i := range all {
		var err error
		if all[i], err = statedb.NewTable(db, fmt.Sprint("floor-", i), floorID, floorGroup); err != nil {
			return err
		}
		wtxn := db.WriteTxn(all[i])
		for id := range b.w.scenario.identities {
			all[i].Insert(wtxn, &floorRow{id, id % places})
		}
		wtxn.Commit()
	}
	ctx, stop := context.WithCancel(context.Background())
	written := make(chan seen, 1)
	var hops sync.WaitGroup
	defer hops.Wait()
	defer stop()
	for i, table := range all {
		wtxn := db.WriteTxn(table)
		changes, err := table.Changes(wtxn)
		wtxn.Commit()
		if err != nil {
			return err
		}
		skip(db, changes)
		hop := func(r *floorRow) { b.floorWrite(r, written) }
		if i+1 < len(all) {
			hop = func(r *floorRow) { insertRow(db, all[i+1], &floorRow{r.id, r.group}) }
		}
		hops.Go(func() { follow(ctx, db, changes, hop) })
	}
	return b.event(fmt.Sprintf("floor: %d rows, one after another", floorTables), samples, func(i int) (time.Duration, error) {
		row := &floorRow{b.w.scenario.identities + i, i % places}
		start := time.Now()
		insertRow(db, all[0], row)
		seen := <-written
		return seen.at.Sub(start), seen.err
	})
}

func insertRow(db *statedb.DB, table statedb.RWTable[*floorRow], row *floorRow) {
	wtxn := db.WriteTxn(table)
	defer wtxn.Abort()
	table.Insert(wtxn, row)
	wtxn.Commit()
}

// floorWrite writes an entry, and removes it when it has said so.
func (b *policyBench) floorWrite(r *floorRow, written chan<- seen) {
	keys := []bpf.SourceKey{{Addr: bpf.AddressFrom(podAddr(1<<addressBits - 1))}}
	_, err := b.maps.Sources.Update(keys, []bpf.SourceValue{{Class: uint32(r.id)}})
	at := time.Now()
	_, gone := b.maps.Sources.Delete(keys)
	written <- seen{at, errors.Join(err, gone)}
}

// follow calls do with the rows that change, until the context is done.
func follow(ctx context.Context, db *statedb.DB, changes statedb.ChangeIterator[*floorRow], do func(*floorRow)) {
	for {
		seq, watch := changes.Next(db.ReadTxn())
		for change := range seq {
			do(change.Object)
		}
		select {
		case <-watch:
		case <-ctx.Done():
			return
		}
	}
}

// skip has nothing told of the rows that there are.
func skip(db *statedb.DB, changes statedb.ChangeIterator[*floorRow]) {
	seq, _ := changes.Next(db.ReadTxn())
	for range seq {
		continue
	}
}
