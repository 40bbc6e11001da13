// SPDX-License-Identifier: Apache-2.0

// Package forwarding keeps the maps that describe this node and its neighbors equal to their
// tables: sluice_exits, sluice_limits, sluice_covered, sluice_nodes, sluice_devices, sluice_config
// and sluice_keys. They are in no slot: they are about addresses, prefixes, devices, keys and names
// of policies, whose meaning never changes, so entries of the previous agent stay until the desired
// ones are known.
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
		registerExits, registerBlocks, registerOwners, registerLimits, registerCovered,
		registerNodes, registerDevices, registerConfig, registerKeys,
	),
)

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

func registerBlocks(
	p mapsync.Params, maps *bpf.Maps, desired tables.Desired[*tables.EgressBlock],
	mirror statedb.RWTable[*tables.BlockMirror],
) error {
	return mapsync.Register(p, mapsync.Config[*tables.EgressBlock, bpf.ExitKey, bpf.BlockValue]{
		Map: maps.Blocks, Desired: desired, Mirror: mirror,
		WithStatus: tables.WithStatus[tables.EgressBlock],
		ByKey: func(k bpf.ExitKey) statedb.Query[*tables.EgressBlock] {
			return tables.EgressBlockByAddr(k.Addr.Addr())
		},
	})
}

func registerLimits(
	p mapsync.Params, maps *bpf.Maps, desired tables.Desired[*tables.EgressLimit],
	mirror statedb.RWTable[*tables.LimitMirror],
) error {
	return mapsync.Register(p, mapsync.Config[*tables.EgressLimit, bpf.LimitKey, bpf.LimitValue]{
		Map: maps.Limits, Desired: desired, Mirror: mirror,
		WithStatus: tables.WithStatus[tables.EgressLimit],
		ByKey: func(k bpf.LimitKey) statedb.Query[*tables.EgressLimit] {
			return tables.EgressLimitByCookie(k.Policy)
		},
	})
}

func registerOwners(
	p mapsync.Params, maps *bpf.Maps, desired tables.Desired[*tables.PortOwner],
	mirror statedb.RWTable[*tables.OwnerMirror],
) error {
	return mapsync.Register(p, mapsync.Config[*tables.PortOwner, bpf.OwnerKey, bpf.OwnerValue]{
		Map: maps.Owners, Desired: desired, Mirror: mirror,
		WithStatus: tables.WithStatus[tables.PortOwner],
		ByKey:      tables.PortOwnerByKey,
	})
}

func registerCovered(
	p mapsync.Params, maps *bpf.Maps, desired tables.Desired[*tables.CoveredPrefix],
	mirror statedb.RWTable[*tables.CoveredMirror],
) error {
	return mapsync.Register(p,
		mapsync.Config[*tables.CoveredPrefix, bpf.CoveredKey, bpf.CoveredValue]{
			Map: maps.Covered, Desired: desired, Mirror: mirror,
			WithStatus: tables.WithStatus[tables.CoveredPrefix],
			ByKey: func(k bpf.CoveredKey) statedb.Query[*tables.CoveredPrefix] {
				return tables.CoveredPrefixByPrefix(k.Prefix())
			},
		})
}

func registerNodes(
	p mapsync.Params, maps *bpf.Maps, desired tables.Desired[*tables.ClusterNode],
	mirror statedb.RWTable[*tables.NodeMirror],
) error {
	return mapsync.Register(p, mapsync.Config[*tables.ClusterNode, bpf.NodeKey, bpf.NodeValue]{
		Map: maps.Nodes, Desired: desired, Mirror: mirror,
		WithStatus: tables.WithStatus[tables.ClusterNode],
		ByKey: func(k bpf.NodeKey) statedb.Query[*tables.ClusterNode] {
			return tables.ClusterNodeByAddr(k.Addr.Addr())
		},
	})
}

func registerDevices(
	p mapsync.Params, maps *bpf.Maps, desired tables.Desired[*tables.PodDevice],
	mirror statedb.RWTable[*tables.DeviceMirror],
) error {
	return mapsync.Register(p, mapsync.Config[*tables.PodDevice, bpf.DeviceKey, bpf.DeviceValue]{
		Map: maps.Devices, Desired: desired, Mirror: mirror,
		WithStatus: tables.WithStatus[tables.PodDevice],
		ByKey: func(k bpf.DeviceKey) statedb.Query[*tables.PodDevice] {
			return tables.PodDeviceByIfIndex(k.IfIndex)
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

func registerKeys(
	p mapsync.Params, maps *bpf.Maps, desired tables.Desired[*tables.OverlayKeys],
	mirror statedb.RWTable[*tables.KeysMirror],
) error {
	return mapsync.Register(p,
		mapsync.Config[*tables.OverlayKeys, bpf.OverlayKeysKey, bpf.OverlayKeysValue]{
			Map: maps.Keys, Desired: desired, Mirror: mirror,
			WithStatus: tables.WithStatus[tables.OverlayKeys],
			ByKey: func(bpf.OverlayKeysKey) statedb.Query[*tables.OverlayKeys] {
				return tables.OverlayKeysByIndex(0)
			},
		})
}
