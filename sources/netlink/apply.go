// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// list makes the listed kinds equal to the listing.
func (c *change) list(l *listing) {
	if l.kinds.has(devices) {
		replace(c, c.devices, l.Devices, c.listDevice)
	}
	if l.kinds.has(addresses) {
		replace(c, c.addresses, l.Addresses, c.putAddress)
	}
	if l.kinds.has(routes) {
		c.repeated = replace(c, c.routes, l.Routes, func(r *tables.Route) { put(c, c.routes, r) })
		c.deadHops = l.deadHops
	}
	if l.kinds.has(neighbours) {
		replace(c, c.neighbours, l.Neighbours, func(n *tables.Neighbour) { put(c, c.neighbours, n) })
	}
	if l.kinds.has(bridgeEntries) {
		replace(c, c.bridgeEntries, l.BridgeEntries, func(e *tables.BridgeEntry) { put(c, c.bridgeEntries, e) })
	}
	// What a device of the listing makes stale, the listing has already.
	c.stale &^= l.kinds
}

func (c *change) apply(ev event) {
	c.stale |= ev.stale
	if ev.stale.has(addresses) && c.deadHops {
		// The first address of a device revives its next hops.
		c.stale |= routes
	}
	switch row := ev.row.(type) {
	case *tables.Device:
		if ev.deleted {
			c.removeDevice(row)
		} else {
			c.announceDevice(row)
		}
	case []*tables.Route:
		switch {
		case ev.deleted:
			c.removeRoutes(row)
		case ev.replaces:
			c.replaceRoutes(row)
		default:
			c.putRoutes(row)
		}
	case *tables.Neighbour:
		if ev.deleted {
			remove(c, c.neighbours, row)
		} else {
			put(c, c.neighbours, row)
		}
	case *tables.BridgeEntry:
		if ev.deleted {
			remove(c, c.bridgeEntries, row)
		} else {
			put(c, c.bridgeEntries, row)
		}
	}
}

// listDevice puts a device of a listing. The events that tell how it got there
// may still be to come, and routes in between.
func (c *change) listDevice(d *tables.Device) {
	if c.putDevice(d) {
		c.stale |= routes
	}
}

// announceDevice puts a device of an event. Routes over a device that goes down
// or joins a VRF go silently, or their next hop is dead; a dead one comes back
// to life as silently. That the device is down may be known from a listing.
func (c *change) announceDevice(d *tables.Device) {
	if hasQueues(d) {
		if former, found := get(c, c.devices, d); found {
			d.Qdiscs = former.Qdiscs
		}
		c.stale |= devices
	}
	if c.putDevice(d) || !d.Up || c.deadHops {
		c.staleRoutesOf(d)
	}
	if d.Type == "veth" && d.ParentIndex == 0 {
		// The first end of a pair is announced before it has a peer.
		c.stale |= devices
	}
}

// putDevice reports whether the device was there and changed in what routes
// depend on.
func (c *change) putDevice(d *tables.Device) bool {
	old, had := put(c, c.devices, d)
	if !had || old.Name != d.Name {
		for a := range c.addresses.List(c.txn, tables.NodeAddressesByDevice(d.Index)) {
			c.putAddress(a)
		}
	}
	return had && (old.Up != d.Up || old.MasterIndex != d.MasterIndex)
}

// removeDevice removes a device and all that is on it. Not all of it is
// announced.
func (c *change) removeDevice(d *tables.Device) {
	remove(c, c.devices, d)
	removeAll(c, c.addresses, tables.NodeAddressesByDevice(d.Index))
	removeAll(c, c.neighbours, tables.NeighboursByDevice(d.Index))
	removeAll(c, c.bridgeEntries, tables.BridgeEntriesByDevice(d.Index))
	// Of routes with several next hops the others may be gone too.
	c.staleRoutesOf(d)
	removeAll(c, c.routes, tables.RoutesByDevice(d.Index))
}

// staleRoutesOf makes routes stale if some lead to the device, or may do so by
// a next hop that is dead and so has no row.
func (c *change) staleRoutesOf(d *tables.Device) {
	if _, _, found := c.routes.Get(c.txn, tables.RoutesByDevice(d.Index)); found || c.deadHops {
		c.stale |= routes
	}
}

// putAddress puts a copy that bears the name of its device.
func (c *change) putAddress(a *tables.NodeAddress) {
	named := *a
	named.Device = ""
	if d, _, found := c.devices.Get(c.txn, tables.DeviceByIndex(a.DeviceIndex)); found {
		named.Device = d.Name
	}
	put(c, c.addresses, &named)
}

// putRoutes puts the next hops of a new route. A row that is there already may
// be of another route that the table does not tell apart, and of these the
// kernel knows which comes first.
func (c *change) putRoutes(hops []*tables.Route) {
	for _, r := range hops {
		old, found := get(c, c.routes, r)
		switch {
		case !found:
			put(c, c.routes, r)
		case *old == *r:
			c.repeated[string(r.ID().Key())] = true
		default:
			c.stale |= routes
		}
	}
}

// replaceRoutes puts the next hops of a route in place of a former route. If
// there are several former rows, they may be next hops of one route or routes
// of which only one is replaced.
func (c *change) replaceRoutes(hops []*tables.Route) {
	if len(hops) == 0 {
		c.stale |= routes
		return
	}
	former := statedb.Collect(c.routes.Prefix(c.txn, tables.RouteHops(hops[0].ID())))
	if len(former) > 1 {
		c.stale |= routes
		return
	}
	for _, old := range former {
		if c.repeated[string(old.ID().Key())] {
			c.stale |= routes
			return
		}
	}
	for _, r := range hops {
		put(c, c.routes, r)
	}
	for _, old := range former {
		if !slices.ContainsFunc(hops, func(r *tables.Route) bool { return r.ID() == old.ID() }) {
			remove(c, c.routes, old)
		}
	}
}

func (c *change) removeRoutes(hops []*tables.Route) {
	for _, r := range hops {
		old, found := get(c, c.routes, r)
		switch {
		case !found:
		case *old == *r && !c.repeated[string(r.ID().Key())]:
			remove(c, c.routes, old)
		default:
			c.stale |= routes
		}
	}
}
