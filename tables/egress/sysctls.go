// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"iter"
	"strings"

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

// deriveSysctls has the reverse path filter loosened of the devices by which
// pods' traffic leaves, for as long as connections may use them, and of the
// overlay device once it is there.
func deriveSysctls(p derive.Params, sysctls statedb.RWTable[*tables.Sysctl], exits statedb.Table[*tables.EgressExit], devices statedb.Table[*tables.Device]) error {
	_, err := derive.Register(p, derive.Rule[string, *tables.Sysctl]{
		Output: sysctls,
		Inputs: []derive.Input[string]{
			derive.FromIf(exits,
				func(old, new *tables.EgressExit) bool { return old.Device != new.Device },
				func(_ statedb.ReadTxn, e *tables.EgressExit, affect func(string)) { affect(e.Device) }),
			derive.FromIf(devices,
				func(old, new *tables.Device) bool { return old.Name != new.Name },
				func(_ statedb.ReadTxn, d *tables.Device, affect func(string)) {
					if d.Name == tables.OverlayDeviceName {
						affect(d.Name)
					}
				}),
		},
		Existing: func(txn statedb.ReadTxn, device string) iter.Seq2[*tables.Sysctl, statedb.Revision] {
			return sysctls.List(txn, tables.SysctlByName(reversePathFilter(device)))
		},
		Rows: func(txn statedb.ReadTxn, device string) []*tables.Sysctl {
			origin := ""
			if _, _, used := exits.Get(txn, tables.EgressExitsByDevice(device)); used {
				origin = "egress gateway on " + device
			}
			if _, _, there := devices.Get(txn, tables.DevicesByName(device)); there && device == tables.OverlayDeviceName {
				origin = "overlay"
			}
			if origin == "" {
				return nil
			}
			return []*tables.Sysctl{{
				Name:       reversePathFilter(device),
				Value:      looseReversePath,
				Origin:     origin,
				Reconciled: tables.Pending(),
			}}
		},
		Equal: (*tables.Sysctl).Equal,
	})
	return err
}

// reversePathFilter is the path of a device's rp_filter. A dot in a device's
// name is part of a directory's name, as the path is not in dotted form.
func reversePathFilter(device string) string {
	return strings.Join([]string{"net", "ipv4", "conf", device, "rp_filter"}, "/")
}
