// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
)

// Numbers of the kernel's own routing tables.
const (
	RouteTableMain  = 254
	RouteTableLocal = 255
)

// Route is a next hop of a route of this node: a route with several next hops
// is several rows. Routes that need a type of service or a source prefix are
// not here, nor are next hops that are dead since their device is down.
type Route struct {
	Table       int          `json:"table"`
	Destination netip.Prefix `json:"destination"`           // 0.0.0.0/0 and ::/0 are the default routes
	Priority    int          `json:"priority"`              // metric, lower is preferred
	DeviceIndex int          `json:"deviceIndex,omitempty"` // 0 if it leads to no device
	Gateway     netip.Addr   `json:"gateway,omitzero"`      // invalid if the destination is on the link
	Source      netip.Addr   `json:"source,omitzero"`       // preferred source address, invalid if not set
	Type        string       `json:"type"`                  // unicast, local, broadcast, blackhole...
	Scope       string       `json:"scope"`                 // global, site, link, host, nowhere or a number
}

// RouteID is the primary key of a [Route].
type RouteID struct {
	Table       int
	Destination netip.Prefix
	Priority    int
	DeviceIndex int
	Gateway     netip.Addr
}

// Key is the index key of the identifier.
func (id RouteID) Key() index.Key {
	key := id.hopsKey()
	key = append(key, index.Int(id.DeviceIndex)...)
	return append(key, index.NetIPAddr(id.Gateway)...)
}

// hopsKey is the part of the key that all next hops of a route share.
func (id RouteID) hopsKey() index.Key {
	key := index.Int(id.Table)
	key = append(key, index.NetIPPrefix(id.Destination)...)
	return append(key, index.Int(id.Priority)...)
}

// ID returns the primary key of the route.
func (r *Route) ID() RouteID {
	return RouteID{Table: r.Table, Destination: r.Destination, Priority: r.Priority, DeviceIndex: r.DeviceIndex, Gateway: r.Gateway}
}

// TableHeader implements [statedb.TableWritable].
func (*Route) TableHeader() []string {
	return []string{"Table", "Destination", "Priority", "Device", "Gateway", "Source", "Type", "Scope"}
}

// TableRow implements [statedb.TableWritable].
func (r *Route) TableRow() []string {
	return []string{
		strconv.Itoa(r.Table), r.Destination.String(), strconv.Itoa(r.Priority), indexColumn(r.DeviceIndex),
		addrColumn(r.Gateway), addrColumn(r.Source), orDash(r.Type), orDash(r.Scope),
	}
}

var (
	routeIDIndex = UniqueIndex("id", KeysOf(RouteID.Key, routeIDString), (*Route).ID)

	routeDestinationIndex = Index("destination", PrefixKeys,
		func(r *Route) netip.Prefix { return r.Destination })

	routeDeviceIndex = Index("device", IntKeys, func(r *Route) int { return r.DeviceIndex })

	routeTableIndex = Index("table", IntKeys, func(r *Route) int { return r.Table })

	// But those of the local table: there every address is the source of its own route.
	routeSourceIndex = IndexIf("source", AddrKeys, func(r *Route) (netip.Addr, bool) {
		return r.Source, r.Source.IsValid() && r.Table != RouteTableLocal
	})

	// RouteByID queries a next hop of a route.
	RouteByID = routeIDIndex.Query

	// RoutesByDestination queries the routes to exactly a prefix, of all tables.
	RoutesByDestination = routeDestinationIndex.Query

	// RoutesByDevice queries the routes that lead to a device by its interface index.
	RoutesByDevice = routeDeviceIndex.Query

	// RoutesBySource queries the routes that prefer a source address, but those
	// of the local routing table.
	RoutesBySource = routeSourceIndex.Query

	// RoutesByTable queries the routes of a routing table, for instance [RouteTableLocal].
	RoutesByTable = routeTableIndex.Query
)

// RouteHops makes a query for [statedb.Table.Prefix]: the next hops of one
// route, which are the rows of its table, destination and priority.
func RouteHops(id RouteID) statedb.Query[*Route] {
	return routeIDIndex.QueryFromKey(id.hopsKey())
}

// routeIDString parses the columns of a key: "254 10.0.0.0/8 100 3 10.1.0.1".
// Fewer columns make a key for prefix queries.
func routeIDString(s string) (index.Key, error) {
	parse := []func(string) (index.Key, error){
		index.IntString, index.NetIPPrefixString, index.IntString, index.IntString, index.NetIPAddrString,
	}
	fields := strings.Fields(s)
	if len(fields) == 0 || len(fields) > len(parse) {
		return nil, fmt.Errorf("parse route %q: want TABLE [DESTINATION [PRIORITY [DEVICE [GATEWAY]]]]", s)
	}
	var key index.Key
	for i, field := range fields {
		if i == len(parse)-1 && field == "-" {
			key = append(key, index.NetIPAddr(netip.Addr{})...)
			continue
		}
		k, err := parse[i](field)
		if err != nil {
			return nil, fmt.Errorf("parse route %q: %w", s, err)
		}
		key = append(key, k...)
	}
	return key, nil
}

// NewRouteTable creates the table of routes.
var NewRouteTable = Declare(
	"routes", routeIDIndex, routeDestinationIndex, routeDeviceIndex, routeTableIndex,
	routeSourceIndex,
)

// ToThisNode reports whether the route says that its destination is this node.
func (r *Route) ToThisNode() bool {
	return r.Table == RouteTableLocal && (r.Type == "local" || r.Type == "anycast")
}
