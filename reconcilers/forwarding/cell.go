// SPDX-License-Identifier: Apache-2.0

// Package forwarding keeps the maps equal to their tables by which the programs
// know this node and its neighbours: sluice_exits, sluice_covered, sluice_nodes
// and sluice_config. They wait for no others, and no others for them.
package forwarding

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/bpfmap"
	"github.com/sluice-net/sluice/tables"
)

// Cell reconciles the maps of forwarding.
var Cell = cell.Module(
	"forwarding-maps",
	"Maps of forwarding",

	cell.ProvidePrivate(
		tables.NewExitEntryTable,
		tables.NewCoveredEntryTable,
		tables.NewNodeEntryTable,
		tables.NewConfigEntryTable,
	),
	cell.Provide(
		statedb.RWTable[*tables.ExitEntry].ToTable,
		statedb.RWTable[*tables.CoveredEntry].ToTable,
		statedb.RWTable[*tables.NodeEntry].ToTable,
		statedb.RWTable[*tables.ConfigEntry].ToTable,
	),
	cell.Invoke(
		registerExits,
		registerCovered,
		registerNodes,
		registerConfig,
	),
)

func registerExits(p bpfmap.Params, maps *bpf.Maps, desired tables.Desired[*tables.EgressExit], mirror statedb.RWTable[*tables.ExitEntry]) error {
	cfg := bpfmap.ConfigOf(maps.Exits, desired, mirror, bpfmap.PlanAny[bpf.ExitKey, bpf.ExitValue]())
	cfg.Independent = true
	return bpfmap.Register(p, cfg)
}

func registerCovered(p bpfmap.Params, maps *bpf.Maps, desired tables.Desired[*tables.CoveredPrefix], mirror statedb.RWTable[*tables.CoveredEntry]) error {
	cfg := bpfmap.ConfigOf(maps.Covered, desired, mirror, bpfmap.PlanPrefixUnsqueezed[bpf.CoveredKey, bpf.CoveredValue]())
	cfg.Independent = true
	return bpfmap.Register(p, cfg)
}

func registerNodes(p bpfmap.Params, maps *bpf.Maps, desired tables.Desired[*tables.ClusterNode], mirror statedb.RWTable[*tables.NodeEntry]) error {
	cfg := bpfmap.ConfigOf(maps.Nodes, desired, mirror, bpfmap.PlanAny[bpf.NodeKey, bpf.NodeValue]())
	cfg.Independent = true
	return bpfmap.Register(p, cfg)
}

// registerConfig has nothing written without an address of this node: that the
// map has an entry is what programs are attached by. The row says why.
func registerConfig(p bpfmap.Params, maps *bpf.Maps, readiness statedb.Table[*tables.ClassReadiness], desired tables.Desired[*tables.DatapathConfig], mirror statedb.RWTable[*tables.ConfigEntry]) error {
	cfg := bpfmap.ConfigOf(maps.Config, desired, mirror, bpfmap.PlanAny[bpf.ConfigKey, bpf.ConfigValue]())
	cfg.Readiness = readiness // of no class: what opens the gate is another row
	cfg.Gate = func(_ statedb.ReadTxn, op bpfmap.Op[bpf.ConfigKey, bpf.ConfigValue]) (waitFor bpf.ClassKey, reason string) {
		if !op.Delete() && op.Value.Underlay == (bpf.Address{}) {
			reason = "the address of this node"
		}
		return waitFor, reason
	}
	return bpfmap.Register(p, cfg)
}
