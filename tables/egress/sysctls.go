// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"strings"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// looseReversePath is the value of rp_filter that accepts packets whose source
// is reachable by any interface (RFC 3704): replies to an egress IP may come in
// by another one than the route back to their source, and what comes over the
// overlay never is where its source is routed to. Not 0: the kernel takes the
// greater of the device's value and that of conf/all, which strict is 1 of.
const looseReversePath = "2"

type sysctlParams struct {
	cell.In

	Sysctls statedb.RWTable[*tables.Sysctl]
	Exits   statedb.Table[*tables.EgressExit]
	Devices statedb.Table[*tables.Device]
}

func deriveSysctls(p derive.Params, s sysctlParams) error {
	return derive.Register(p, s.declare())
}

// declare is the rule that has the reverse path filter loosened of the devices by which
// pods' traffic leaves, for as long as connections may use them, and of the overlay device
// once it is there. Its keys are names of devices.
func (s *sysctlParams) declare() derive.Rule[string] {
	return derive.Rule[string]{
		Outputs: []statedb.TableMeta{s.Sysctls},
		Inputs: []derive.Input[string]{
			derive.FromIf(s.Exits,
				func(old, new *tables.EgressExit) bool { return old.Device != new.Device },
				func(_ statedb.ReadTxn, e *tables.EgressExit, mark func(string)) { mark(e.Device) }),
			derive.FromIf(s.Devices,
				func(old, new *tables.Device) bool { return old.Name != new.Name },
				func(_ statedb.ReadTxn, d *tables.Device, mark func(string)) {
					if d.Name == tables.OverlayDeviceName {
						mark(d.Name)
					}
				}),
		},
		Compute: derive.Each(s.Sysctls, func(device string) statedb.Query[*tables.Sysctl] {
			return tables.SysctlByName(reversePathFilter(device))
		}, (*tables.Sysctl).Equal, s.row),
	}
}

func (s *sysctlParams) row(in statedb.ReadTxn, device string) *tables.Sysctl {
	origin := s.origin(in, device)
	if origin == "" {
		return nil
	}
	return &tables.Sysctl{
		Name: reversePathFilter(device), Value: looseReversePath, Origin: origin,
		Reconciled: tables.Pending(),
	}
}

// origin says which gateways need the filter of a device loosened, empty if none.
func (s *sysctlParams) origin(in statedb.ReadTxn, device string) string {
	if device == tables.OverlayDeviceName {
		if _, _, there := s.Devices.Get(in, tables.DevicesByName(device)); there {
			return "overlay"
		}
	}
	if _, _, used := s.Exits.Get(in, tables.EgressExitsByDevice(device)); used {
		return "egress gateway on " + device
	}
	return ""
}

// reversePathFilter returns the path of a device's rp_filter. A dot in a device's name is part of a
// directory's name, as the path is not in dotted form.
func reversePathFilter(device string) string {
	return strings.Join([]string{"net", "ipv4", "conf", device, "rp_filter"}, "/")
}
