// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluice-net/sluice/tables"
)

// kernel is where the tables come from: the real one or a [Fake].
type kernel interface {
	// subscribe starts to follow changes. A refusal, as [refused] tells it, is
	// final; any other error may pass.
	subscribe() (feed, error)

	// list returns the present rows of the wanted kinds.
	list(ctx context.Context, want kinds) (*listing, error)
}

// feed is a subscription to changes.
type feed interface {
	// receive waits for changes and returns all that are queued, oldest first.
	// It may return none, and does so at the time until. After an error, changes
	// may be lost and the feed is of no further use.
	receive(ctx context.Context, until time.Time) ([]event, error)

	// pending is receive without waiting.
	pending() ([]event, error)

	close()
}

// kinds is a set of kinds of rows.
type kinds uint8

const (
	devices kinds = 1 << iota
	addresses
	routes
	neighbours
	bridgeEntries

	allKinds = devices | addresses | routes | neighbours | bridgeEntries
)

func (k kinds) has(o kinds) bool { return k&o != 0 }

// event is a change. It has a row, or says what is stale, or neither when it is
// of no interest.
type event struct {
	row      any   // *tables.Device, []*tables.Route, *tables.Neighbour or *tables.BridgeEntry
	deleted  bool  // the row is gone; only its key counts, but for routes
	replaces bool  // the routes take the place of one with the same destination
	stale    kinds // to be listed again
}

// State is everything that this package reads of a kernel.
type State struct {
	Devices       []*tables.Device
	Addresses     []*tables.NodeAddress // of a device and family in the order of preference
	Routes        []*tables.Route
	Neighbours    []*tables.Neighbour
	BridgeEntries []*tables.BridgeEntry
}

// listing is the part of the state that was asked for.
type listing struct {
	State
	kinds    kinds
	deadHops bool  // there are routes over devices that are down
	problems error // what was refused or not understood, and so is not listed
}

// orderAddresses numbers the addresses of each device and family as they are listed.
func orderAddresses(addrs []*tables.NodeAddress) {
	type family struct {
		device int
		is4    bool
	}
	next := map[family]int{}
	for _, a := range addrs {
		f := family{a.DeviceIndex, a.Addr.Is4()}
		a.Order = next[f]
		next[f]++
	}
}

// defaultRoute returns the prefix of all addresses of a family.
func defaultRoute(is4 bool) netip.Prefix {
	if is4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
