// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// exit is how traffic leaves this node as a gateway.
type exit struct {
	device     *tables.Device
	ipv4, ipv6 netip.Addr // invalid: none, traffic of the family is dropped
}

// exit finds the device and addresses for an item of a list of gateways on this node: those of the
// interface that it names; those of the device that has its egress IP; or those of the device of
// the default route.
func (g *gatewayParams) exit(txn statedb.ReadTxn, spec tables.GatewaySpec) (exit, error) {
	switch {
	case spec.Interface != "":
		device, _, found := g.Devices.Get(txn, tables.DevicesByName(spec.Interface))
		if !found {
			return exit{}, fmt.Errorf("no interface %s", spec.Interface)
		}
		return g.exitBy(txn, device)

	case spec.EgressIP.IsValid():
		a, _, found := g.Addresses.Get(txn, tables.NodeAddressesByAddr(spec.EgressIP))
		if !found {
			return exit{}, fmt.Errorf("no interface has the egress IP %s", spec.EgressIP)
		}
		device, _, found := g.Devices.Get(txn, tables.DeviceByIndex(a.DeviceIndex))
		if !found {
			return exit{}, fmt.Errorf("no interface has the egress IP %s", spec.EgressIP)
		}
		// The egress IP itself is enough, if the device has no other address.
		e, _ := g.exitBy(txn, device)
		if spec.EgressIP.Is4() {
			e.ipv4 = spec.EgressIP
		} else {
			e.ipv6 = spec.EgressIP
		}
		return e, nil

	default:
		return g.exitByDefaultRoute(txn)
	}
}

// exitBy returns the exit by a device, with its first address of each family.
func (g *gatewayParams) exitBy(txn statedb.ReadTxn, device *tables.Device) (exit, error) {
	e := exit{device: device}
	var first4, first6 *tables.NodeAddress
	for a := range g.Addresses.List(txn, tables.NodeAddressesByDevice(device.Index)) {
		if a.Scope == "link" || a.Scope == "host" || a.Addr.IsLinkLocalUnicast() || a.Addr.IsLoopback() ||
			a.Deprecated {
			continue
		}
		first := &first6
		if a.Addr.Is4() {
			first = &first4
		}
		if *first == nil || a.Order < (*first).Order {
			*first = a
		}
	}
	if first4 != nil {
		e.ipv4 = first4.Addr
	}
	if first6 != nil {
		e.ipv6 = first6.Addr
	}
	if first4 == nil && first6 == nil {
		return e, fmt.Errorf("interface %s has no usable address", device.Name)
	}
	return e, nil
}

var defaultRoutes = [...]netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"),
}

func isDefault(r *tables.Route) bool {
	return r.Table == tables.RouteTableMain && r.Type == "unicast" && r.Destination.Bits() == 0
}

// exitByDefaultRoute returns the exit by the device of the default routes, which must be the same
// for both families.
func (g *gatewayParams) exitByDefaultRoute(txn statedb.ReadTxn) (exit, error) {
	var device *tables.Device
	for _, destination := range defaultRoutes {
		var best *tables.Route
		for r := range g.Routes.List(txn, tables.RoutesByDestination(destination)) {
			if isDefault(r) && r.DeviceIndex != 0 && (best == nil || r.Priority < best.Priority) {
				best = r
			}
		}
		if best == nil {
			continue
		}
		d, _, found := g.Devices.Get(txn, tables.DeviceByIndex(best.DeviceIndex))
		if !found {
			continue
		}
		if device != nil && device.Index != d.Index {
			return exit{}, fmt.Errorf(
				"default routes by different interfaces, %s for IPv4 and %s for IPv6", device.Name, d.Name,
			)
		}
		device = d
	}
	if device == nil {
		return exit{}, fmt.Errorf("no default route")
	}
	return g.exitBy(txn, device)
}
