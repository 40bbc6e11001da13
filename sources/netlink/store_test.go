// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func sampleListing() *listing { return &listing{kinds: allKinds, State: clone(sampleState())} }

func TestFirstListingInitializes(t *testing.T) {
	s, p := newTestStore(t)
	_, err := s.write(nil, []event{{row: &tables.Neighbour{DeviceIndex: 9, Addr: netip.MustParseAddr("10.0.0.1"), MAC: "02:00:00:00:00:01"}}})
	require.NoError(t, err)
	for _, table := range []statedb.TableMeta{p.Devices, p.Addresses, p.Routes, p.Neighbours, p.BridgeEntries} {
		done, _ := table.Initialized(p.DB.ReadTxn())
		require.False(t, done, "events are not a listing")
	}
	stale, err := s.write(sampleListing(), nil)
	require.NoError(t, err)
	require.Zero(t, stale)
	for _, table := range []statedb.TableMeta{p.Devices, p.Addresses, p.Routes, p.Neighbours, p.BridgeEntries} {
		done, _ := table.Initialized(p.DB.ReadTxn())
		require.True(t, done)
	}
	require.Len(t, p.rows().Neighbours, 1, "what is not listed is gone")
}

func TestUnchangedListingWritesNothing(t *testing.T) {
	s, p := newTestStore(t)
	_, err := s.write(sampleListing(), nil)
	require.NoError(t, err)
	tables := []statedb.TableMeta{p.Devices, p.Addresses, p.Routes, p.Neighbours, p.BridgeEntries}
	before := p.DB.ReadTxn()
	_, err = s.write(sampleListing(), nil)
	require.NoError(t, err)
	for _, table := range tables {
		require.Equal(t, table.Revision(before), table.Revision(p.DB.ReadTxn()), table.Name())
	}

	fewer := sampleListing()
	fewer.kinds, fewer.Routes = routes, fewer.Routes[:1]
	_, err = s.write(fewer, nil)
	require.NoError(t, err)
	require.Len(t, p.rows().Routes, 1)
	require.Len(t, p.rows().Devices, 2, "a listing is of its kinds only")
}

// What events say of devices and routes, and when they say too little.
func TestStaleRoutes(t *testing.T) {
	hop := func(gateway string, change ...func(*tables.Route)) *tables.Route {
		r := &tables.Route{Table: 254, Destination: netip.MustParsePrefix("10.7.0.0/16"), DeviceIndex: 2, Gateway: netip.MustParseAddr(gateway), Type: "unicast"}
		for _, c := range change {
			c(r)
		}
		return r
	}
	withSource := func(r *tables.Route) { r.Source = netip.MustParseAddr("10.0.0.5") }
	device := func(change func(*tables.Device)) *tables.Device {
		d := *sampleState().Devices[1]
		change(&d)
		return &d
	}
	one, two, three := hop("10.0.0.1"), hop("10.0.0.2"), hop("10.0.0.3")
	tests := []struct {
		name     string
		routes   []*tables.Route // to 10.7.0.0/16 before
		deadHops bool
		event    event
		stale    kinds
		want     []*tables.Route // after; nil is no change
	}{
		{name: "new", event: event{row: []*tables.Route{one, two}}, want: []*tables.Route{one, two}},
		{name: "deleted", routes: []*tables.Route{one, two}, event: event{row: []*tables.Route{one}, deleted: true}, want: []*tables.Route{two}},
		{name: "deleted one of two with the same key", routes: []*tables.Route{one, hop("10.0.0.1", withSource)}, event: event{row: []*tables.Route{one}, deleted: true}, stale: routes},
		{name: "deleted an unknown one with the same key", routes: []*tables.Route{one}, event: event{row: []*tables.Route{hop("10.0.0.1", withSource)}, deleted: true}, stale: routes},
		{name: "second with the same key", routes: []*tables.Route{one}, event: event{row: []*tables.Route{hop("10.0.0.1", withSource)}}, stale: routes},
		{name: "replaced", routes: []*tables.Route{one}, event: event{row: []*tables.Route{two, three}, replaces: true}, want: []*tables.Route{two, three}},
		{name: "one of several replaced", routes: []*tables.Route{one, two}, event: event{row: []*tables.Route{three}, replaces: true}, stale: routes},
		{name: "device down", routes: []*tables.Route{one}, event: event{row: device(func(d *tables.Device) { d.Up = false })}, stale: routes},
		{name: "device joins a VRF", routes: []*tables.Route{one}, event: event{row: device(func(d *tables.Device) { d.MasterIndex = 9 })}, stale: routes},
		{name: "other change of a device", routes: []*tables.Route{one}, event: event{row: device(func(d *tables.Device) { d.MTU = 9000 })}},
		{name: "new device", event: event{row: device(func(d *tables.Device) { d.Index = 9 })}},
		{name: "device with dead hops up", deadHops: true, event: event{row: device(func(d *tables.Device) { d.Index, d.Up = 1, false })}, stale: routes},
		{name: "event of a device known to be down", routes: []*tables.Route{{Table: 255, Destination: one.Destination, DeviceIndex: 1}}, event: event{row: device(func(d *tables.Device) { d.Index, d.Up = 1, false })}, stale: routes},
		{name: "address with dead hops", deadHops: true, event: event{stale: addresses}, stale: addresses | routes},
		{name: "address without dead hops", event: event{stale: addresses}, stale: addresses},
		{name: "first end of a pair", event: event{row: device(func(d *tables.Device) { d.Index, d.Type = 9, "veth" })}, stale: devices},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, p := newTestStore(t)
			l := sampleListing()
			l.Routes, l.deadHops = tt.routes, tt.deadHops
			_, err := s.write(l, nil)
			require.NoError(t, err)
			before := p.rows().Routes
			stale, err := s.write(nil, []event{tt.event})
			require.NoError(t, err)
			require.Equal(t, tt.stale, stale)
			if tt.want == nil {
				tt.want = before
			}
			require.Equal(t, tt.want, p.rows().Routes)
		})
	}
}

func TestDeletedDeviceTakesItsRowsAlong(t *testing.T) {
	s, p := newTestStore(t)
	l := sampleListing()
	l.BridgeEntries = append(l.BridgeEntries, &tables.BridgeEntry{BridgeIndex: 2, DeviceIndex: 5, MAC: "02:00:00:00:00:03"})
	_, err := s.write(l, nil)
	require.NoError(t, err)
	stale, err := s.write(nil, []event{{row: &tables.Device{Index: 2}, deleted: true}})
	require.NoError(t, err)
	require.Equal(t, routes, stale, "of routes with several hops others may be gone")
	require.Equal(t, sampleState().Devices[:1], p.rows().Devices)
	require.Empty(t, p.rows().Addresses)
	require.Empty(t, p.rows().Routes)
	require.Empty(t, p.rows().Neighbours)
	require.Empty(t, p.rows().BridgeEntries)
}
