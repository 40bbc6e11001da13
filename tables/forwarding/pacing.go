// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// paces reports whether all devices wait for departure times by which pods' packets leave this node
// that have been translated here: those where an egress address makes to_netdev run, and the one
// with the underlay's address if addresses may move, as packets then go to the node that has one. A
// packet that goes to it by another device because of a route does not wait.
func (c *configParams) paces(txn statedb.ReadTxn, underlay netip.Addr) bool {
	devices := map[int]bool{}
	for a := range c.Attachments.All(txn) {
		if a.Program == bpf.ProgramToNetdev {
			devices[a.IfIndex] = true
		}
	}
	if c.EgressIPs.Enabled {
		for a := range c.Addresses.List(txn, tables.NodeAddressesByAddr(underlay)) {
			devices[a.DeviceIndex] = true
		}
	}
	paced := 0
	for index := range devices {
		d, _, found := c.Devices.Get(txn, tables.DeviceByIndex(index))
		if found && !d.Paces() {
			return false
		} else if found {
			paced++
		}
	}
	return paced > 0
}
