// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cilium/statedb/index"
)

// NodeAddress is an address of a device of this node which the kernel accepts
// packets for: not one that is still being checked for duplicates.
type NodeAddress struct {
	Addr        netip.Addr   `json:"addr"`
	Prefix      netip.Prefix `json:"prefix"` // what is on the link: the subnet, or the peer's of a point-to-point address
	DeviceIndex int          `json:"deviceIndex"`
	Device      string       `json:"device"`     // name of the device, purely informative
	Scope       string       `json:"scope"`      // global, site, link, host or a number
	Secondary   bool         `json:"secondary"`  // IPv4: not the first of its subnet; IPv6: temporary
	Deprecated  bool         `json:"deprecated"` // not to be used for new flows

	// Order is the position among the device's addresses of the same family in
	// the kernel's listing. The kernel's own choice is the first that fits.
	Order int `json:"order"`
}

// NodeAddressID is the primary key of a [NodeAddress].
type NodeAddressID struct {
	Addr        netip.Addr
	DeviceIndex int
}

// Key is the index key of the identifier. Keys of an address are contiguous.
func (id NodeAddressID) Key() index.Key {
	return append(index.NetIPAddr(id.Addr), index.Int(id.DeviceIndex)...)
}

// ID returns the primary key of the address.
func (a *NodeAddress) ID() NodeAddressID {
	return NodeAddressID{Addr: a.Addr, DeviceIndex: a.DeviceIndex}
}

// TableHeader implements [statedb.TableWritable].
func (*NodeAddress) TableHeader() []string {
	return []string{"Address", "Prefix", "Index", "Device", "Scope", "Secondary", "Deprecated", "Order"}
}

// TableRow implements [statedb.TableWritable].
func (a *NodeAddress) TableRow() []string {
	return []string{
		a.Addr.String(), a.Prefix.String(), strconv.Itoa(a.DeviceIndex), orDash(a.Device), orDash(a.Scope),
		strconv.FormatBool(a.Secondary), strconv.FormatBool(a.Deprecated), strconv.Itoa(a.Order),
	}
}

// deviceAndAddrKey parses a text of an interface index and, optionally, an
// address: "3 10.0.0.1".
func deviceAndAddrKey(s string) (index.Key, error) {
	device, addr, hasAddr := strings.Cut(s, " ")
	key, err := index.IntString(device)
	if err != nil || !hasAddr {
		return key, err
	}
	rest, err := index.NetIPAddrString(addr)
	return append(key, rest...), err
}

var (
	nodeAddressIDIndex = UniqueIndex("id", KeysOf(NodeAddressID.Key, nodeAddressIDString),
		(*NodeAddress).ID)

	nodeAddressDeviceIndex = Index("device", IntKeys,
		func(a *NodeAddress) int { return a.DeviceIndex })

	nodeAddressAddrIndex = Index("addr", AddrKeys,
		func(a *NodeAddress) netip.Addr { return a.Addr })

	// NodeAddressByID queries an address of a device.
	NodeAddressByID = nodeAddressIDIndex.Query

	// NodeAddressesByDevice queries the addresses of a device by its interface
	// index. Their order is that of the addresses, not Order.
	NodeAddressesByDevice = nodeAddressDeviceIndex.Query

	// NodeAddressesByAddr queries the devices that have an address.
	NodeAddressesByAddr = nodeAddressAddrIndex.Query
)

// nodeAddressIDString parses "10.0.0.1 3", or "10.0.0.1" for a prefix query.
func nodeAddressIDString(s string) (index.Key, error) {
	addr, device, hasDevice := strings.Cut(s, " ")
	key, err := index.NetIPAddrString(addr)
	if err != nil {
		return nil, fmt.Errorf("parse address %q: %w", addr, err)
	}
	if !hasDevice {
		return key, nil
	}
	rest, err := index.IntString(device)
	if err != nil {
		return nil, fmt.Errorf("parse interface index %q: %w", device, err)
	}
	return append(key, rest...), nil
}

// NewNodeAddressTable creates the table of the addresses of this node.
var NewNodeAddressTable = Declare(
	"node-addresses", nodeAddressIDIndex, nodeAddressDeviceIndex, nodeAddressAddrIndex,
)
