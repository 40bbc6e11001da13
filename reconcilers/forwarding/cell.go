// SPDX-License-Identifier: Apache-2.0

// Package forwarding keeps the maps that describe this node and its neighbors equal to their
// tables: sluice_exits, sluice_blocks, sluice_owners, sluice_limits, sluice_covered, sluice_nodes,
// sluice_devices, sluice_config and sluice_keys. They are in no slot: they are about addresses,
// prefixes, ports, devices, keys and names of policies, whose meaning never changes, so entries of
// the previous agent stay until the desired ones are known.
//
// An egress address is in sluice_exits only while programs are attached to the device that receives
// its replies. Without programs the node would take the first replies for its own connections, and
// reset them. Until then traffic with that address is dropped with the reason "no egress address",
// and its row says why.
package forwarding

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
)

// Cell reconciles the maps of forwarding.
var Cell = cell.Module(
	"forwarding-maps",
	"Maps of forwarding",

	tables.Own(tables.NewExitMirrorTable),
	tables.Own(tables.NewBlockMirrorTable),
	tables.Own(tables.NewOwnerMirrorTable),
	tables.Own(tables.NewLimitMirrorTable),
	tables.Own(tables.NewCoveredMirrorTable),
	tables.Own(tables.NewNodeMirrorTable),
	tables.Own(tables.NewDeviceMirrorTable),
	tables.Own(tables.NewConfigMirrorTable),
	tables.Own(tables.NewKeysMirrorTable),
	cell.Invoke(
		registerExits,
		plain(func(m *bpf.Maps) bpf.Map[bpf.ExitKey, bpf.BlockValue] { return m.Blocks },
			func(k bpf.ExitKey) statedb.Query[*tables.EgressBlock] {
				return tables.EgressBlockByAddr(k.Addr.Addr())
			}),
		plain(func(m *bpf.Maps) bpf.Map[bpf.OwnerKey, bpf.OwnerValue] { return m.Owners },
			tables.PortOwnerByKey),
		plain(func(m *bpf.Maps) bpf.Map[bpf.LimitKey, bpf.LimitValue] { return m.Limits },
			func(k bpf.LimitKey) statedb.Query[*tables.EgressLimit] {
				return tables.EgressLimitByCookie(k.Policy)
			}),
		plain(func(m *bpf.Maps) bpf.Map[bpf.CoveredKey, bpf.CoveredValue] { return m.Covered },
			func(k bpf.CoveredKey) statedb.Query[*tables.CoveredPrefix] {
				return tables.CoveredPrefixByPrefix(k.Prefix())
			}),
		plain(func(m *bpf.Maps) bpf.Map[bpf.NodeKey, bpf.NodeValue] { return m.Nodes },
			func(k bpf.NodeKey) statedb.Query[*tables.ClusterNode] {
				return tables.ClusterNodeByAddr(k.Addr.Addr())
			}),
		plain(func(m *bpf.Maps) bpf.Map[bpf.DeviceKey, bpf.DeviceValue] { return m.Devices },
			func(k bpf.DeviceKey) statedb.Query[*tables.PodDevice] {
				return tables.PodDeviceByIfIndex(k.IfIndex)
			}),
		registerConfig,
		plain(func(m *bpf.Maps) bpf.Map[bpf.OverlayKeysKey, bpf.OverlayKeysValue] { return m.Keys },
			func(bpf.OverlayKeysKey) statedb.Query[*tables.OverlayKeys] {
				return tables.OverlayKeysByIndex(0)
			}),
	),
)

// plain returns what registers a map whose entries wait for nothing; byKey queries the desired row
// of an entry.
func plain[K, V tables.MapPart, R any, Row interface {
	tables.ReconciledRow[R]
	mapsync.Row[K, V]
}](
	of func(*bpf.Maps) bpf.Map[K, V], byKey func(K) statedb.Query[Row],
) func(
	mapsync.Params, *bpf.Maps, tables.Desired[Row], statedb.RWTable[*tables.Mirror[K, V]],
) error {
	return func(
		p mapsync.Params, maps *bpf.Maps, desired tables.Desired[Row],
		mirror statedb.RWTable[*tables.Mirror[K, V]],
	) error {
		return mapsync.Register(p, mapsync.Config[Row, K, V]{
			Map: of(maps), Desired: desired, Mirror: mirror,
			WithStatus: tables.WithStatus[R, Row], ByKey: byKey,
		})
	}
}

func registerExits(
	p mapsync.Params, maps *bpf.Maps, attachments statedb.Table[*tables.Attachment],
	desired tables.Desired[*tables.EgressExit], mirror statedb.RWTable[*tables.ExitMirror],
) error {
	device := mapsync.NewDependency("device", mapsync.Attached(attachments,
		bpf.ProgramFromNetdev, bpf.ProgramToNetdev)).Outside()
	return mapsync.Register(p, mapsync.Config[*tables.EgressExit, bpf.ExitKey, bpf.ExitValue]{
		Map: maps.Exits, Desired: desired, Mirror: mirror,
		PublishIntent: true, // programs stay at the devices of announced entries
		WithStatus:    tables.WithStatus[tables.EgressExit],
		ByKey: func(k bpf.ExitKey) statedb.Query[*tables.EgressExit] {
			return tables.EgressExitByAddr(k.Addr.Addr())
		},
		Refers: func(row *tables.EgressExit, kernel *bpf.ExitValue) []mapsync.Reference {
			if kernel != nil && kernel.IfIndex == row.IfIndex {
				return nil
			}
			return []mapsync.Reference{device.On(row.IfIndex)}
		},
		// Replies arrive at the new device already.
		DeleteWhileBlocked: func(row *tables.EgressExit, kernel bpf.ExitValue) bool {
			return kernel.IfIndex != row.IfIndex
		},
	})
}

// registerConfig writes nothing until this node has an address: programs are attached once the map
// has an entry. The row says what it waits for.
func registerConfig(
	p mapsync.Params, maps *bpf.Maps, desired tables.Desired[*tables.DatapathConfig],
	mirror statedb.RWTable[*tables.ConfigMirror],
) error {
	underlay := mapsync.NewDependency("the address of this node", mapsync.Condition{
		Evaluate: func(txn statedb.ReadTxn) func(mapsync.Reference) string {
			return func(mapsync.Reference) string {
				for row := range desired.All(txn) {
					if row.Underlay.IsValid() {
						return ""
					}
				}
				return "its Node has none"
			}
		},
		Tables: []mapsync.Watched{mapsync.Watch(desired.ToTable())},
	}).Outside()
	return mapsync.Register(p,
		mapsync.Config[*tables.DatapathConfig, bpf.ConfigKey, bpf.ConfigValue]{
			Map: maps.Config, Desired: desired, Mirror: mirror,
			WithStatus: tables.WithStatus[tables.DatapathConfig],
			ByKey: func(bpf.ConfigKey) statedb.Query[*tables.DatapathConfig] {
				return tables.DatapathConfigByIndex(0)
			},
			Refers: func(*tables.DatapathConfig, *bpf.ConfigValue) []mapsync.Reference {
				return []mapsync.Reference{underlay.On(0)}
			},
		})
}
