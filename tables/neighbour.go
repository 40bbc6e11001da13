// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb/index"
)

// Neighbour is an address on a link whose link-layer address is known. The row
// does not say how fresh that knowledge is: it would change all the time.
type Neighbour struct {
	DeviceIndex int        `json:"deviceIndex"`
	Addr        netip.Addr `json:"addr"`
	MAC         string     `json:"mac"`       // lower-case hex with colons
	Permanent   bool       `json:"permanent"` // configured, not learned
}

// NeighbourID is the primary key of a [Neighbour].
type NeighbourID struct {
	DeviceIndex int
	Addr        netip.Addr
}

// Key is the index key of the identifier.
func (id NeighbourID) Key() index.Key {
	return append(index.Int(id.DeviceIndex), index.NetIPAddr(id.Addr)...)
}

// ID returns the primary key of the neighbour.
func (n *Neighbour) ID() NeighbourID { return NeighbourID{DeviceIndex: n.DeviceIndex, Addr: n.Addr} }

// TableHeader implements [statedb.TableWritable].
func (*Neighbour) TableHeader() []string { return []string{"Device", "Address", "MAC", "Permanent"} }

// TableRow implements [statedb.TableWritable].
func (n *Neighbour) TableRow() []string {
	return []string{strconv.Itoa(n.DeviceIndex), n.Addr.String(), orDash(n.MAC), strconv.FormatBool(n.Permanent)}
}

var (
	neighbourIDIndex = UniqueIndex("id", KeysOf(NeighbourID.Key, deviceAndAddrKey), (*Neighbour).ID)

	neighbourDeviceIndex = Index("device", IntKeys, func(n *Neighbour) int { return n.DeviceIndex })

	neighbourAddrIndex = Index("addr", AddrKeys, func(n *Neighbour) netip.Addr { return n.Addr })

	// NeighbourByID queries a neighbour by its device and address.
	NeighbourByID = neighbourIDIndex.Query

	// NeighboursByDevice queries the neighbours on a device by its interface index.
	NeighboursByDevice = neighbourDeviceIndex.Query

	// NeighboursByAddr queries where an address is a neighbour.
	NeighboursByAddr = neighbourAddrIndex.Query
)

// NewNeighbourTable creates the table of neighbours.
var NewNeighbourTable = Declare(
	"neighbours", neighbourIDIndex, neighbourDeviceIndex, neighbourAddrIndex,
)
