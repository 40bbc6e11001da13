// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

type podDeviceParams struct {
	cell.In

	PodDevices statedb.RWTable[*tables.PodDevice]
	Locals     statedb.Table[*tables.LocalEndpoint]
}

// derivePodDevices keeps the devices of this node's pods. By these the programs know for which pod
// they judge packets that have none of its addresses.
func derivePodDevices(p derive.Params, d podDeviceParams) error {
	return derive.Register(p, derive.Rule[uint32]{
		Outputs: []statedb.TableMeta{d.PodDevices},
		Inputs: []derive.Input[uint32]{
			derive.From(d.Locals,
				func(_ statedb.ReadTxn, e *tables.LocalEndpoint, mark func(uint32)) {
					if e.IfIndex != 0 {
						mark(e.IfIndex)
					}
				}),
		},
		Compute: derive.Each(
			d.PodDevices, tables.PodDeviceByIfIndex, (*tables.PodDevice).Equal, d.row),
	})
}

func (d *podDeviceParams) row(txn statedb.ReadTxn, index uint32) (row *tables.PodDevice) {
	for e := range d.Locals.List(txn, tables.LocalEndpointsByDevice(int(index))) {
		if e.IfIndex != index || row != nil && !e.Addr.Less(row.Addr) {
			continue
		}
		row = &tables.PodDevice{
			IfIndex: index, Device: e.Device, Endpoint: e.Endpoint, Addr: e.Addr,
			Reconciled: tables.Pending(),
		}
	}
	return row
}
