// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
)

// gates are the objects that entries refer to.
type gates struct {
	device, subject, member, class, ruleset *mapsync.Dependency
	verdictSet, egressRuleset, group        *mapsync.Dependency
	prefixesInside, prefixesAround, room    *mapsync.Dependency
}

func newGates(p *params) *gates {
	effective := mapsync.Condition{
		Evaluate: p.lookEffective,
		Tables: []mapsync.Watched{
			mapsync.Watch(p.Rulesets), mapsync.Watch(p.Selectors), mapsync.Watch(p.Matches),
			mapsync.Watch(p.Members.ToTable()), mapsync.Watch(p.PeerMirror.ToTable()),
			mapsync.Watch(p.IPCache.ToTable()), mapsync.Watch(p.IPCacheMirror.ToTable()),
		},
	}
	numbered := mapsync.Condition{
		Evaluate: p.lookNumbered,
		Tables: []mapsync.Watched{
			mapsync.Watch(p.Rulesets), mapsync.Watch(p.Classes),
			mapsync.Watch(p.Members.ToTable()), mapsync.Watch(p.PeerMirror.ToTable()),
		},
	}
	return &gates{
		// Programs are attached when the maps are complete.
		device: mapsync.NewDependency("device",
			mapsync.Attached(p.Attachments, bpf.ProgramFromPod, bpf.ProgramToPod)).Outside(),
		subject: mapsync.NewDependency("subject",
			mapsync.IsDone(p.Subjects.ToTable(), tables.SubjectByNumber),
			mapsync.Condition{
				Evaluate: p.lookRoute,
				Tables: []mapsync.Watched{
					mapsync.Watch(p.Routes.ToTable()), mapsync.Watch(p.RouteMirror.ToTable()),
				},
			}),
		// The rule that refuses a row writes it again when there is room.
		room: mapsync.NewDependency("room", mapsync.Condition{
			Evaluate: func(statedb.ReadTxn) func(mapsync.Reference) string {
				return func(mapsync.Reference) string { return "its namespace has its share of the map" }
			},
		}).Outside(),
		// The rule that writes ipcache removes no member that a row refers to.
		member: mapsync.NewDependency("member", mapsync.Condition{
			Evaluate: p.lookPeer,
			Tables:   []mapsync.Watched{mapsync.Watch(p.PeerMirror.ToTable())},
		}),
		class: mapsync.NewDependency("class",
			compiled(p.Compiled, tables.CompiledClass),
			mapsync.NonePending(p.PolicyEntries.ToTable(), tables.PolicyEntriesPendingOfClass)),
		ruleset: mapsync.NewDependency("ruleset",
			compiled(p.Compiled, tables.CompiledRuleset),
			mapsync.NonePending(p.PolicyEntries.ToTable(), tables.PolicyEntriesPendingOfRuleset),
			effective, numbered),
		verdictSet: mapsync.NewDependency("verdict set",
			mapsync.Exists(p.VerdictSets, tables.VerdictSetByNumber),
			mapsync.NonePending(p.Verdicts.ToTable(), tables.VerdictsPending)),
		egressRuleset: mapsync.NewDependency("egress ruleset",
			mapsync.Exists(p.EgressRulesets, tables.EgressRulesetByNumber),
			mapsync.NonePending(p.EgressRules.ToTable(), tables.EgressRulesPending)),
		group: mapsync.NewDependency("gateway group", mapsync.Condition{
			Evaluate: p.lookGroup, Tables: []mapsync.Watched{mapsync.Watch(p.Gateways.ToTable())},
		}),
		prefixesInside: mapsync.NewDependency("prefixes inside", mapsync.Condition{
			Evaluate: p.lookInside,
			Tables: []mapsync.Watched{
				mapsync.Watch(p.PeerPrefixes),
				mapsync.Watch(p.IPCache.ToTable()),
				mapsync.Watch(p.IPCacheMirror.ToTable()),
			},
		}),
		prefixesAround: mapsync.NewDependency("prefixes around", mapsync.Condition{
			Evaluate: p.lookAround,
			Tables: []mapsync.Watched{
				mapsync.Watch(p.IPCache.ToTable()),
				mapsync.Watch(p.IPCacheMirror.ToTable()),
			},
		}),
	}
}

// compiled is met if policy-entries has all that is desired of a ruleset or class: else that
// none is pending would be true of one of which nothing was computed yet.
func compiled(table statedb.Table[*tables.Compiled], role tables.CompiledRole) mapsync.Condition {
	return mapsync.Exists(table, func(number uint32) statedb.Query[*tables.Compiled] {
		return tables.CompiledByKey(tables.Compiled{Role: role, Number: number})
	})
}

// lookRoute checks that the kernel has the route of a subject, or none if the subject has none.
func (p *params) lookRoute(txn statedb.ReadTxn) func(mapsync.Reference) string {
	return func(r mapsync.Reference) string {
		route, _, found := p.Routes.Get(txn, tables.RouteBySubject(r.Number))
		if found && route.Status.Kind == reconciler.StatusKindDone {
			return ""
		}
		key := bpf.SubjectKey{Subject: r.Number}
		_, _, present := p.RouteMirror.Get(
			txn, tables.MirrorByKey[bpf.SubjectKey, bpf.RouteValue](key),
		)
		if found || present {
			return p.Routes.Name()
		}
		return ""
	}
}

// lookPeer checks that the kernel has a class for a member, and is not about to lose it. Any class
// will do: if the member changes its class, both are complete.
func (p *params) lookPeer(txn statedb.ReadTxn) func(mapsync.Reference) string {
	return func(r mapsync.Reference) string {
		key := bpf.PeerKey{Member: r.Number}
		m, _, found := p.PeerMirror.Get(txn, tables.MirrorByKey[bpf.PeerKey, bpf.PeerValue](key))
		if !found || !m.Present || m.Busy && m.Deleting {
			return p.Members.Name()
		}
		return ""
	}
}

// lookGroup checks that the kernel has all buckets of a gateway group.
func (p *params) lookGroup(txn statedb.ReadTxn) func(mapsync.Reference) string {
	return func(r mapsync.Reference) string {
		done := 0
		for g := range p.Gateways.Prefix(txn, tables.EgressGatewaysOfGroup(r.Number)) {
			if g.Status.Kind == reconciler.StatusKindDone {
				done++
			}
		}
		if done < bpf.GatewayBuckets {
			return p.Gateways.Name()
		}
		return ""
	}
}
