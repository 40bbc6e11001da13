// SPDX-License-Identifier: Apache-2.0

// Package egress keeps the maps of the egress gateway equal to their tables,
// and says what has to be in the kernel before what:
//
//	sluice_classes ◄── sluice_gateways ◄── sluice_egress ◄── sluice_sources
//
// An entry on the right is written when those on its left that it leads to are
// in the kernel: a number when it is recorded what it stands for, a rule when
// its gateway group is complete, the class of an address when all rules of the
// class are. Deletions go the other way round: the rules of a class that is no
// more when no address is in it, the buckets of a group when no rule leads to it.
package egress

import (
	"fmt"
	"net/netip"

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

	cell.ProvidePrivate(
		tables.NewClassEntryTable,
		tables.NewGatewayEntryTable,
		tables.NewEgressEntryTable,
		tables.NewSourceEntryTable,
		tables.NewIPCacheEntryTable,
		tables.NewPodEntryTable,
	),
	cell.Provide(
		statedb.RWTable[*tables.ClassEntry].ToTable,
		statedb.RWTable[*tables.GatewayEntry].ToTable,
		statedb.RWTable[*tables.EgressEntry].ToTable,
		statedb.RWTable[*tables.SourceEntry].ToTable,
		statedb.RWTable[*tables.IPCacheEntry].ToTable,
		statedb.RWTable[*tables.PodEntry].ToTable,
	),
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

	Endpoints     statedb.Table[*tables.Endpoint]
	Members       statedb.Table[*tables.ClassMember]
	SourceEntries statedb.Table[*tables.SourceEntry]
	EgressEntries statedb.Table[*tables.EgressEntry]
}

func registerClasses(p params, desired tables.Desired[*tables.Class], mirror statedb.RWTable[*tables.ClassEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.Classes, desired, mirror, bpfmap.PlanAny[bpf.ClassKey, bpf.ClassValue]())
	cfg.Opener = bpfmap.OpenedByReadiness(p.Readiness)
	cfg.Gate = func(txn statedb.ReadTxn, op bpfmap.Op[bpf.ClassKey, bpf.ClassValue]) (any, string) {
		if op.Delete() || op.Old == nil {
			return op.Key, ""
		}
		switch op.Key.Role {
		case bpf.RoleEgress:
			return p.left(txn, op.Key)
		case bpf.RolePeer, bpf.RoleSubject:
			class := tables.ClassRow(txn, p.Members, op.Key)
			if class != nil && len(class.Leaving) > 0 {
				return op.Key, fmt.Sprintf("%s to be left by %d prefixes that no longer belong to it", op.Key, len(class.Leavers))
			}
		}
		return op.Key, ""
	}
	return bpfmap.Register(p.Params, cfg)
}

func registerGateways(p params, desired tables.Desired[*tables.EgressGateway], mirror statedb.RWTable[*tables.GatewayEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.Gateways, desired, mirror, bpfmap.PlanAny[bpf.GatewayKey, bpf.GatewayValue]())
	cfg.Opener = bpfmap.OpenedByReadiness(p.Readiness)
	cfg.Gate = func(txn statedb.ReadTxn, op bpfmap.Op[bpf.GatewayKey, bpf.GatewayValue]) (any, string) {
		group := bpf.ClassKey{Role: bpf.RoleGatewayGroup, Number: op.Key.Group}
		if op.Delete() {
			_, _, used := p.EgressEntries.Get(txn, tables.EgressEntriesByGroup(group.Number))
			return unused(group, used)
		}
		return p.registered(txn, group)
	}
	return bpfmap.Register(p.Params, cfg)
}

func registerRules(p params, desired tables.Desired[*tables.EgressRule], mirror statedb.RWTable[*tables.EgressEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.Egress, desired, mirror, bpfmap.PlanPrefixUnsqueezed[bpf.EgressKey, bpf.EgressValue]())
	cfg.Opener = bpfmap.OpenedByReadiness(p.Readiness)
	cfg.Gate = func(txn statedb.ReadTxn, op bpfmap.Op[bpf.EgressKey, bpf.EgressValue]) (any, string) {
		class := bpf.ClassKey{Role: bpf.RoleEgress, Number: op.Key.Class}
		if _, _, wanted := p.Classes.Get(txn, tables.ClassByKey(class)); !wanted {
			_, _, used := p.SourceEntries.Get(txn, tables.SourceEntriesByClass(class.Number))
			return unused(class, used)
		}
		if key, reason := p.left(txn, class); reason != "" || op.Delete() {
			return key, reason
		}
		if key, reason := p.registered(txn, class); reason != "" {
			return key, reason
		}
		if op.Value.Group == bpf.GroupExcluded {
			return bpf.ClassKey{}, ""
		}
		return p.ready(txn, bpf.ClassKey{Role: bpf.RoleGatewayGroup, Number: op.Value.Group})
	}
	return bpfmap.Register(p.Params, cfg)
}

func registerSources(p params, desired tables.Desired[*tables.EgressSource], mirror statedb.RWTable[*tables.SourceEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.Sources, desired, mirror, bpfmap.PlanAny[bpf.SourceKey, bpf.SourceValue]())
	cfg.Opener = bpfmap.OpenedByReadiness(p.Readiness)
	cfg.Gate = func(txn statedb.ReadTxn, op bpfmap.Op[bpf.SourceKey, bpf.SourceValue]) (any, string) {
		if op.Delete() {
			return bpf.ClassKey{}, ""
		}
		class := bpf.ClassKey{Role: bpf.RoleEgress, Number: op.Value.Class}
		if !p.belongs(txn, op.Key.Addr.Addr(), op.Value.Class) {
			return class, "its class to be derived anew"
		}
		// Addresses that are to leave the class hold back its rules. One that
		// comes from another class must not wait for that, or the two could
		// wait for each other: it gets the rules as they are.
		if r := p.readiness(txn, class); op.Old != nil && r != nil && r.Registered && r.Leaving {
			return class, ""
		}
		return p.ready(txn, class)
	}
	return bpfmap.Register(p.Params, cfg)
}

func registerIPCache(p params, desired tables.Desired[*tables.IPCache], mirror statedb.RWTable[*tables.IPCacheEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.IPCache, desired, mirror, bpfmap.PlanPrefixUnsqueezed[bpf.IPCacheKey, bpf.IPCacheValue]())
	cfg.Independent = true // no gate looks at it
	return bpfmap.Register(p.Params, cfg)
}

func registerPods(p params, desired tables.Desired[*tables.LocalEndpoint], mirror statedb.RWTable[*tables.PodEntry]) error {
	cfg := bpfmap.ConfigOf(p.Maps.Pods, desired, mirror, bpfmap.PlanAny[bpf.PodKey, bpf.PodValue]())
	cfg.Independent = true // no gate looks at it
	return bpfmap.Register(p.Params, cfg)
}

// The gates look at the tables themselves where a row of class-readiness could
// be of a moment ago. That row changes after each of them, which has what waits
// looked at again; or it does not, where a change was undone before the row was
// derived anew, and bpfmap looks again by itself.

// registered is the gate of entries that name a number: it has to be recorded
// what the number stands for, or it could not be told after a restart.
func (p *params) registered(txn statedb.ReadTxn, key bpf.ClassKey) (waitFor bpf.ClassKey, reason string) {
	if r := p.readiness(txn, key); r == nil || !r.Registered {
		return key, fmt.Sprintf("%s: its number is not recorded yet", key)
	}
	return key, ""
}

// ready is the gate of entries that lead to a class or group: it has to be
// complete in the kernel.
func (p *params) ready(txn statedb.ReadTxn, key bpf.ClassKey) (waitFor bpf.ClassKey, reason string) {
	switch r := p.readiness(txn, key); {
	case r == nil:
		return key, key.String()
	case !r.Ready():
		return key, fmt.Sprintf("%s: the kernel has %d of its %d entries, and %d others", key, r.RowsReady, r.RowsWanted, r.RowsExtra)
	case !p.current(txn, r):
		return key, fmt.Sprintf("%s: its rules to be derived anew", key)
	}
	return key, ""
}

// current reports whether the readiness of a class is that of its policies as
// they are now. From a changed policy to its rules, and to their readiness, it
// is several hops: who comes new to the class meanwhile would get the rules of
// before, and keep them for as long as the new ones wait. The work is that of
// the policies that apply to the class, not of their destinations.
func (p *params) current(txn statedb.ReadTxn, r *tables.ClassReadiness) bool {
	if r.Role != bpf.RoleEgress {
		return true
	}
	c, revision, found := p.EgressClasses.Get(txn, tables.EgressClassByNumber(r.Number))
	if !found || revision != r.Of {
		return false
	}
	for _, choice := range c.Policies {
		if _, revision, found := p.Policies.Get(txn, tables.EgressPolicyByName(choice.Policy)); !found || revision != choice.Revision {
			return false
		}
	}
	return true
}

// readiness returns what the kernel has of a class or group, nil if that is
// not known of what it stands for now.
func (p *params) readiness(txn statedb.ReadTxn, key bpf.ClassKey) *tables.ClassReadiness {
	c, _, found := p.Classes.Get(txn, tables.ClassByKey(key))
	if !found {
		return nil
	}
	r, _, found := p.Readiness.Get(txn, tables.ClassReadinessByKey(key))
	if !found || r.Digest != c.Digest {
		return nil
	}
	return r
}

// unused is the gate of deletions: what belongs to a class or group stays while
// the kernel has something that leads to it.
func unused(key bpf.ClassKey, used bool) (waitFor bpf.ClassKey, reason string) {
	if used {
		return key, fmt.Sprintf("%s to be left by all that is in it", key)
	}
	return key, ""
}

// left is the gate of changes to a class: the addresses that no longer belong to
// it have to be elsewhere first, or they would meet what is not meant for them.
func (p *params) left(txn statedb.ReadTxn, key bpf.ClassKey) (waitFor bpf.ClassKey, reason string) {
	placement := tables.Placement{Endpoints: p.Endpoints, Members: p.Members, SourceEntries: p.SourceEntries}
	if placement.Leaving(txn, key.Number) {
		return key, fmt.Sprintf("%s to be left by addresses that no longer belong to it", key)
	}
	return key, ""
}

// belongs reports whether an address is of an endpoint of the class. A row that
// says so may be of a moment ago.
func (p *params) belongs(txn statedb.ReadTxn, addr netip.Addr, class uint32) bool {
	owner, _ := tables.AddrOwner(txn, p.Endpoints, addr)
	if owner == nil {
		return false
	}
	m := tables.MemberOf(txn, p.Members, bpf.RoleEgress, owner)
	return m != nil && m.Class == class
}
