// SPDX-License-Identifier: Apache-2.0

// Package egress keeps the maps of the egress gateway equal to their tables,
// and says what has to be in the kernel before what:
//
//	classes ◄── sluice_gateways ◄── sluice_egress ◄── sluice_sources
//
// An entry on the right is written when those on its left that it leads to are
// in the kernel: a number when it is recorded what it stands for, a rule when
// its gateway group is complete, the class of an address when all rules of the
// class are, and the device of a pod, in sluice_pods, when its programs run there
// and no class is in the kernel that was of the former pod of its address.
// Deletions go the other way round: the rules of a class that is no
// more when no address is in it, the buckets of a group when no rule leads to it.
package egress

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/bpfmap"
	"github.com/sluice-net/sluice/tables"
)

// Cell reconciles the maps of the egress gateway and of addresses.
var Cell = cell.Module(
	"egress-maps",
	"Maps of the egress gateway",

	tables.Own(tables.NewClassEntryTable),
	tables.Own(tables.NewGatewayEntryTable),
	tables.Own(tables.NewEgressEntryTable),
	tables.Own(tables.NewSourceEntryTable),
	tables.Own(tables.NewIPCacheEntryTable),
	tables.Own(tables.NewPodEntryTable),
	cell.Invoke(
		registerClasses,
		registerGateways,
		registerRules,
		registerSources,
		registerIPCache,
		registerPods,
	),
)

type params struct {
	cell.In

	bpfmap.Params
	Maps      *bpf.Maps
	Classes   statedb.Table[*tables.Class]
	Readiness statedb.Table[*tables.ClassReadiness]

	EgressClasses statedb.Table[*tables.EgressClass]
	Policies      statedb.Table[*tables.EgressPolicy]
	Selectors     statedb.Table[*tables.Selector]

	Endpoints     statedb.Table[*tables.Endpoint]
	Members       statedb.Table[*tables.ClassMember]
	SourceEntries statedb.Table[*tables.SourceEntry]
	EgressEntries statedb.Table[*tables.EgressEntry]
}

func registerClasses(p params, desired tables.Desired[*tables.Class], mirror statedb.RWTable[*tables.ClassEntry]) error {
	cfg := bpfmap.ConfigOf(bpf.Map[bpf.ClassKey, bpf.ClassValue](newRecord()), desired, mirror, bpfmap.PlanAny[bpf.ClassKey, bpf.ClassValue]())
	cfg.Opener = bpfmap.OpenedByReadiness(p.Readiness)
	cfg.Gate = func(txn statedb.ReadTxn) bpfmap.Gate[bpf.ClassKey, bpf.ClassValue] { return p.look(txn).class }
	return bpfmap.Register(p.Params, cfg)
}

func registerGateways(p params, desired tables.Desired[*tables.EgressGateway], mirror statedb.RWTable[*tables.GatewayEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.Gateways, desired, mirror, bpfmap.PlanAny[bpf.GatewayKey, bpf.GatewayValue]())
	cfg.Opener = bpfmap.OpenedByReadiness(p.Readiness)
	cfg.Gate = func(txn statedb.ReadTxn) bpfmap.Gate[bpf.GatewayKey, bpf.GatewayValue] { return p.look(txn).gateway }
	return bpfmap.Register(p.Params, cfg)
}

func registerRules(p params, desired tables.Desired[*tables.EgressRule], mirror statedb.RWTable[*tables.EgressEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.Egress, desired, mirror, bpfmap.PlanPrefixUnsqueezed[bpf.EgressKey, bpf.EgressValue]())
	cfg.Opener = bpfmap.OpenedByReadiness(p.Readiness)
	cfg.Gate = func(txn statedb.ReadTxn) bpfmap.Gate[bpf.EgressKey, bpf.EgressValue] { return p.look(txn).rule }
	return bpfmap.Register(p.Params, cfg)
}

func registerSources(p params, desired tables.Desired[*tables.EgressSource], mirror statedb.RWTable[*tables.SourceEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.Sources, desired, mirror, bpfmap.PlanAny[bpf.SourceKey, bpf.SourceValue]())
	cfg.Opener = bpfmap.OpenedByEach(p.Readiness, p.openSources)
	cfg.Gate = func(txn statedb.ReadTxn) bpfmap.Gate[bpf.SourceKey, bpf.SourceValue] { return p.look(txn).source }
	return bpfmap.Register(p.Params, cfg)
}

func registerIPCache(p params, desired tables.Desired[*tables.IPCache], mirror statedb.RWTable[*tables.IPCacheEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.IPCache, desired, mirror, bpfmap.PlanPrefixUnsqueezed[bpf.IPCacheKey, bpf.IPCacheValue]())
	cfg.Independent = true // no gate looks at it
	return bpfmap.Register(p.Params, cfg)
}

// registerPods has the device of a pod written when the programs run there that judge
// what it sends and gets: until then the programs that see it hold it, as far as a
// policy could concern it, and they know by the entry that they need not.
func registerPods(p params, attachments statedb.Table[*tables.Attachment], desired tables.Desired[*tables.LocalEndpoint], mirror statedb.RWTable[*tables.PodEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.Pods, desired, mirror, bpfmap.PlanAny[bpf.PodKey, bpf.PodValue]())
	// A change in sluice_sources opens too: it changes the row of local-endpoints.
	cfg.Opener = bpfmap.OpenedBy(attachments, func(a *tables.Attachment) uint32 { return uint32(a.IfIndex) })
	// Attachments stay for as long as the mirror has a pod of their device.
	cfg.Held = []statedb.TableMeta{attachments}
	cfg.Gate = func(txn statedb.ReadTxn) bpfmap.Gate[bpf.PodKey, bpf.PodValue] {
		l := p.look(txn)
		return func(op bpfmap.Op[bpf.PodKey, bpf.PodValue]) (waitFor any, reason string) {
			if op.Delete() || op.Value.IfIndex == 0 {
				return nil, ""
			}
			if moves(op) {
				reason = tables.Unattached(txn, attachments, op.Value.IfIndex, bpf.ProgramFromPod, bpf.ProgramToPod)
			}
			if reason == "" {
				reason = l.pod(op)
			}
			return op.Value.IfIndex, reason
		}
	}
	// The entry of another device would say that the pod is judged there.
	cfg.Vacate = func(op bpfmap.Op[bpf.PodKey, bpf.PodValue]) bool { return moves(op) && op.Old.IfIndex != 0 }
	return bpfmap.Register(p.Params, cfg)
}

// moves reports whether a write gives a pod's address another device.
func moves(op bpfmap.Op[bpf.PodKey, bpf.PodValue]) bool {
	return op.Old == nil || op.Old.IfIndex != op.Value.IfIndex
}
