// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

type storeParams struct {
	cell.In

	DB            *statedb.DB
	Devices       statedb.RWTable[*tables.Device]
	Addresses     statedb.RWTable[*tables.NodeAddress]
	Routes        statedb.RWTable[*tables.Route]
	Neighbours    statedb.RWTable[*tables.Neighbour]
	BridgeEntries statedb.RWTable[*tables.BridgeEntry]
}

// store writes the tables. It is used by one goroutine.
type store struct {
	db            *statedb.DB
	devices       target[*tables.Device]
	addresses     target[*tables.NodeAddress]
	routes        target[*tables.Route]
	neighbours    target[*tables.Neighbour]
	bridgeEntries target[*tables.BridgeEntry]

	initializers []func(statedb.WriteTxn) // until they are called

	// What the table of routes does not show of the last listing, and what
	// events made of it: routes have next hops that are dead, and keys that
	// are of more than one route.
	deadHops bool
	repeated map[string]bool
}

// target is a table and what tells its rows apart.
type target[Row any] struct {
	statedb.RWTable[Row]
	equal func(a, b Row) bool
}

func equalValues[Row comparable](a, b *Row) bool { return *a == *b }

// newStore also registers the initializers of the tables, which the first
// listing completes.
func newStore(p storeParams) *store {
	s := &store{
		db:            p.DB,
		devices:       target[*tables.Device]{p.Devices, (*tables.Device).Equal},
		addresses:     target[*tables.NodeAddress]{p.Addresses, equalValues[tables.NodeAddress]},
		routes:        target[*tables.Route]{p.Routes, equalValues[tables.Route]},
		neighbours:    target[*tables.Neighbour]{p.Neighbours, equalValues[tables.Neighbour]},
		bridgeEntries: target[*tables.BridgeEntry]{p.BridgeEntries, equalValues[tables.BridgeEntry]},
		repeated:      map[string]bool{},
	}
	wtxn := s.writeTxn()
	defer wtxn.Abort()
	s.initializers = []func(statedb.WriteTxn){
		p.Devices.RegisterInitializer(wtxn, "netlink"),
		p.Addresses.RegisterInitializer(wtxn, "netlink"),
		p.Routes.RegisterInitializer(wtxn, "netlink"),
		p.Neighbours.RegisterInitializer(wtxn, "netlink"),
		p.BridgeEntries.RegisterInitializer(wtxn, "netlink"),
	}
	wtxn.Commit()
	return s
}

func (s *store) writeTxn() statedb.WriteTxn {
	return s.db.WriteTxn(s.devices, s.addresses, s.routes, s.neighbours, s.bridgeEntries)
}

// write makes the listed kinds equal to the listing, if there is one, and then
// applies the events, in one transaction. It returns what became stale.
func (s *store) write(l *listing, events []event) (kinds, error) {
	wtxn := s.writeTxn()
	defer wtxn.Abort()
	c := change{store: s, txn: wtxn}
	if l != nil {
		c.list(l)
	}
	for _, ev := range events {
		c.apply(ev)
	}
	if c.err != nil {
		return 0, fmt.Errorf("write netlink tables: %w", c.err)
	}
	if l != nil && s.initializers != nil {
		for _, initialized := range s.initializers {
			initialized(wtxn)
		}
		s.initializers = nil
		c.wrote = true
	}
	if c.wrote {
		wtxn.Commit()
	}
	return c.stale, nil
}

// summary says how much there is.
func (s *store) summary() string {
	txn := s.db.ReadTxn()
	return fmt.Sprintf("%d devices, %d addresses, %d routes, %d neighbours, %d bridge entries",
		s.devices.NumObjects(txn), s.addresses.NumObjects(txn), s.routes.NumObjects(txn),
		s.neighbours.NumObjects(txn), s.bridgeEntries.NumObjects(txn))
}

// change is a transaction under way.
type change struct {
	*store
	txn   statedb.WriteTxn
	stale kinds
	wrote bool
	err   error // the first; errors are misuse of the tables only
}

func get[Row any](c *change, t target[Row], row Row) (Row, bool) {
	old, _, found := t.Get(c.txn, t.PrimaryIndexer().QueryFromObject(row))
	return old, found
}

// put inserts a row unless it is there already, and returns the former one.
func put[Row any](c *change, t target[Row], row Row) (old Row, had bool) {
	old, had = get(c, t, row)
	if had && t.equal(old, row) {
		return old, had
	}
	_, _, err := t.Insert(c.txn, row)
	c.done(err)
	return old, had
}

func remove[Row any](c *change, t target[Row], row Row) {
	_, had, err := t.Delete(c.txn, row)
	if had || err != nil {
		c.done(err)
	}
}

func removeAll[Row any](c *change, t target[Row], q statedb.Query[Row]) {
	for row := range t.List(c.txn, q) {
		remove(c, t, row)
	}
}

// replace puts the wanted rows and then removes the others. Of rows with the
// same key the first counts: it is the one that the kernel would use. The keys
// of such rows are returned.
func replace[Row any](
	c *change, t target[Row], want []Row, put func(Row),
) (repeated map[string]bool) {
	key := t.PrimaryIndexer().ObjectToKey
	keep := make(map[string]bool, len(want))
	repeated = map[string]bool{}
	for _, row := range want {
		k := string(key(row))
		if keep[k] {
			repeated[k] = true
			continue
		}
		keep[k] = true
		put(row)
	}
	for row := range t.All(c.txn) {
		if !keep[string(key(row))] {
			remove(c, t, row)
		}
	}
	return repeated
}

func (c *change) done(err error) {
	c.wrote = true
	if c.err == nil {
		c.err = err
	}
}
