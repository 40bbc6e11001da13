// SPDX-License-Identifier: Apache-2.0

// Package forwarding keeps the maps equal to their tables by which the programs
// know this node and its neighbours: sluice_exits, sluice_covered, sluice_nodes
// and sluice_config. They wait for no other maps, and those not for them.
//
// An egress address is in sluice_exits only while the programs are attached to
// its device by which replies come back: without them the node would take the
// first replies for its own, and reset the connections. Until then what is to
// leave with it is dropped, for want of an egress address, and its row says why.
//
// Nothing waits for sluice_covered, as waiting would hold nobody: a pod that has no
// entry or no programs yet is held by what is covered, as one is whose class is not
// known. What begins before the prefixes of a new policy are there goes on until
// the kernel knows its class; then the pod's epoch is raised, and it is cut.
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

	tables.Own(tables.NewExitEntryTable),
	tables.Own(tables.NewCoveredEntryTable),
	tables.Own(tables.NewNodeEntryTable),
	tables.Own(tables.NewConfigEntryTable),
	cell.Invoke(
		registerExits,
		registerCovered,
		registerNodes,
		registerConfig,
	),
)

func registerExits(p bpfmap.Params, maps *bpf.Maps, attachments statedb.Table[*tables.Attachment], desired tables.Desired[*tables.EgressExit], mirror statedb.RWTable[*tables.ExitEntry]) error {
	cfg := bpfmap.ConfigOf(maps.Exits, desired, mirror, bpfmap.PlanAny[bpf.ExitKey, bpf.ExitValue]())
	cfg.Opener = bpfmap.OpenedBy(attachments, func(a *tables.Attachment) uint32 { return uint32(a.IfIndex) })
	// Attachments stay for as long as the mirror has an address of their device.
	cfg.Held = []statedb.TableMeta{attachments}
	moves := func(op bpfmap.Op[bpf.ExitKey, bpf.ExitValue]) bool {
		return op.Old == nil || op.Old.IfIndex != op.Value.IfIndex
	}
	cfg.Gate = func(txn statedb.ReadTxn) bpfmap.Gate[bpf.ExitKey, bpf.ExitValue] {
		return func(op bpfmap.Op[bpf.ExitKey, bpf.ExitValue]) (waitFor any, reason string) {
			if op.Delete() || !moves(op) {
				return nil, ""
			}
			return op.Value.IfIndex, tables.Unattached(txn, attachments, op.Value.IfIndex, bpf.ProgramFromNetdev, bpf.ProgramToNetdev)
		}
	}
	cfg.Vacate = moves // replies come by the new device already
	return bpfmap.Register(p, cfg)
}

// registerCovered has it announced what is about to go: local-endpoints relies on
// what holds pods.
func registerCovered(p bpfmap.Params, maps *bpf.Maps, desired tables.Desired[*tables.CoveredPrefix], mirror statedb.RWTable[*tables.CoveredEntry]) error {
	cfg := bpfmap.ConfigOf(maps.Covered, desired, mirror, bpfmap.PlanPrefixUnsqueezed[bpf.CoveredKey, bpf.CoveredValue]())
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
	cfg.Opener = bpfmap.OpenedByReadiness(readiness) // of no class: what opens the gate is another row
	cfg.Gate = func(statedb.ReadTxn) bpfmap.Gate[bpf.ConfigKey, bpf.ConfigValue] {
		return func(op bpfmap.Op[bpf.ConfigKey, bpf.ConfigValue]) (waitFor any, reason string) {
			if !op.Delete() && op.Value.Underlay == (bpf.Address{}) {
				reason = "the address of this node"
			}
			return waitFor, reason
		}
	}
	return bpfmap.Register(p, cfg)
}
