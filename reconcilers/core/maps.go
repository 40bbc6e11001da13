// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/core"
)

func register(p params) error {
	g := newGates(&p)
	return errors.Join(
		mapsync.Register(p.Params, pods(&p, g)),
		mapsync.Register(p.Params, ipcache(&p, g)),
		mapsync.Register(p.Params, subjects(&p, g)),
		mapsync.Register(p.Params, routes(&p, g)),
		mapsync.Register(p.Params, peers(&p, g)),
		mapsync.Register(p.Params, policy(&p, g)),
		mapsync.Register(p.Params, verdicts(&p)),
		mapsync.Register(p.Params, egress(&p, g)),
		mapsync.Register(p.Params, gateways(&p)),
	)
}

// withStatus returns a copy of a row with another status.
func withStatus[R interface {
	Clone() R
	SetStatus(reconciler.Status) R
}](row R, status reconciler.Status) R {
	return row.Clone().SetStatus(status)
}

func pods(p *params, g *gates) mapsync.Config[*core.Pod, bpf.PodKey, core.PodValue] {
	return mapsync.Config[*core.Pod, bpf.PodKey, core.PodValue]{
		Map: p.Maps.Pods, Desired: p.Pods, Mirror: p.PodMirror, Announce: true,
		WithStatus: withStatus[*core.Pod],
		ByKey:      func(k bpf.PodKey) statedb.Query[*core.Pod] { return core.PodByAddr(k.Addr.Addr()) },
		Refers: func(row *core.Pod, kernel *core.PodValue) (refers []mapsync.Reference) {
			// A pod without a subject is held.
			if row.Subject != 0 && (kernel == nil || kernel.Subject != row.Subject) {
				refers = append(refers, g.subject.On(row.Subject))
			}
			if row.IfIndex != 0 && (kernel == nil || kernel.IfIndex != row.IfIndex) {
				refers = append(refers, g.device.On(row.IfIndex))
			}
			return refers
		},
		Revises: func(old, new *core.PodValue) bool {
			return old != nil && new != nil && old.Subject != new.Subject
		},
		Raise:   p.Kept.Raise,
		Flushes: func(old, new *core.PodValue) bool { return old == nil || new == nil },
		Flush: func(keys []bpf.PodKey) {
			addrs := make([]netip.Addr, len(keys))
			for i, k := range keys {
				addrs[i] = k.Addr.Addr()
			}
			p.Kept.Flush(addrs)
		},
	}
}

func ipcacheByKey(k bpf.IPCacheKey) statedb.Query[*core.IPCache] {
	return core.IPCacheByPrefix(k.Prefix())
}

func ipcache(p *params, g *gates) mapsync.Config[*core.IPCache, bpf.IPCacheKey, core.IPCacheValue] {
	isPod := func(v *core.IPCacheValue) bool { return v != nil && v.Flags&bpf.IPCachePod != 0 }
	return mapsync.Config[*core.IPCache, bpf.IPCacheKey, core.IPCacheValue]{
		Map: p.Maps.IPCache, Desired: p.IPCache, Mirror: p.IPCacheMirror, Announce: true,
		WithStatus: withStatus[*core.IPCache],
		ByKey:      ipcacheByKey,
		Refers: func(row *core.IPCache, kernel *core.IPCacheValue) []mapsync.Reference {
			switch {
			case kernel != nil && kernel.Member == row.Member:
				return nil
			case row.Prefix.IsSingleIP():
				return []mapsync.Reference{g.member.On(row.Member)}
			}
			return []mapsync.Reference{g.member.On(row.Member), g.prefixesInside.OnPrefix(row.Prefix)}
		},
		Releases: func(k bpf.IPCacheKey) []mapsync.Reference {
			return []mapsync.Reference{
				g.prefixesInside.OnPrefix(k.Prefix()),
				g.prefixesAround.OnPrefix(k.Prefix()),
			}
		},
		Made: func(row *core.IPCache) uint64 { return row.Made },
		Revises: func(old, new *core.IPCacheValue) bool {
			if old == nil || new == nil {
				return !isPod(old) && !isPod(new)
			}
			return old.Member != new.Member || old.Flags != new.Flags
		},
		Raise: p.Kept.Raise,
		Flushes: func(old, new *core.IPCacheValue) bool {
			return old == nil && isPod(new) || new == nil && isPod(old)
		},
		Flush: func(keys []bpf.IPCacheKey) {
			addrs := make([]netip.Addr, len(keys))
			for i, k := range keys {
				addrs[i] = k.Prefix().Addr()
			}
			p.Kept.Flush(addrs)
		},
	}
}

func subjects(
	p *params,
	g *gates,
) mapsync.Config[*core.Subject, core.SubjectKey, core.SubjectValue] {
	return mapsync.Config[*core.Subject, core.SubjectKey, core.SubjectValue]{
		Map: p.Maps.Subjects, Desired: p.Subjects, Mirror: p.SubjectMirror, Announce: true,
		WithStatus: withStatus[*core.Subject],
		ByKey:      func(k core.SubjectKey) statedb.Query[*core.Subject] { return core.SubjectByNumber(k.Subject) },
		Refers: func(row *core.Subject, _ *core.SubjectValue) []mapsync.Reference {
			if row.Ruleset <= core.EmptyRuleset {
				return nil // they have no entries
			}
			return []mapsync.Reference{g.ruleset.On(row.Ruleset)}
		},
		DeleteAfter: mapsync.Grace,
		Revises:     func(old, new *core.SubjectValue) bool { return old != nil && new != nil },
		Raise:       p.Kept.Raise,
	}
}

func routes(p *params, g *gates) mapsync.Config[*core.Route, core.SubjectKey, core.RouteValue] {
	return mapsync.Config[*core.Route, core.SubjectKey, core.RouteValue]{
		Map: p.Maps.Routes, Desired: p.Routes, Mirror: p.RouteMirror, Announce: true,
		WithStatus: withStatus[*core.Route],
		ByKey:      func(k core.SubjectKey) statedb.Query[*core.Route] { return core.RouteBySubject(k.Subject) },
		Refers: func(row *core.Route, _ *core.RouteValue) []mapsync.Reference {
			return []mapsync.Reference{g.egressRuleset.On(row.EgressRuleset)}
		},
		DeleteAfter: mapsync.Grace,
	}
}

func peers(p *params, g *gates) mapsync.Config[*core.Member, core.PeerKey, core.PeerValue] {
	return mapsync.Config[*core.Member, core.PeerKey, core.PeerValue]{
		Map: p.Maps.Peers, Desired: p.Members, Mirror: p.PeerMirror, Announce: true,
		WithStatus: withStatus[*core.Member],
		ByKey:      func(k core.PeerKey) statedb.Query[*core.Member] { return core.MemberByNumber(k.Member) },
		Refers: func(row *core.Member, _ *core.PeerValue) []mapsync.Reference {
			return []mapsync.Reference{g.class.On(row.Class)}
		},
		Made:        func(row *core.Member) uint64 { return row.Made },
		DeleteAfter: mapsync.Grace,
		Revises:     func(old, new *core.PeerValue) bool { return old != nil && new != nil },
		Raise:       p.Kept.Raise,
	}
}

// policy announces nothing: an entry is only deleted when its ruleset or its class is, to
// which nothing in the kernel refers then, so it keeps no verdict set alive.
func policy(
	p *params,
	g *gates,
) mapsync.Config[*core.PolicyEntry, core.PolicyKey, core.PolicyValue] {
	return mapsync.Config[*core.PolicyEntry, core.PolicyKey, core.PolicyValue]{
		Map: p.Maps.Policy, Desired: p.PolicyEntries, Mirror: p.PolicyMirror,
		WithStatus: withStatus[*core.PolicyEntry],
		ByKey:      core.PolicyEntryByKey,
		Refers: func(row *core.PolicyEntry, _ *core.PolicyValue) []mapsync.Reference {
			return []mapsync.Reference{g.verdictSet.On(row.Set)}
		},
		DeleteAfter: mapsync.Grace,
	}
}

func verdicts(p *params) mapsync.Config[*core.Verdict, core.VerdictKey, core.VerdictValue] {
	return mapsync.Config[*core.Verdict, core.VerdictKey, core.VerdictValue]{
		Map: p.Maps.Verdicts, Desired: p.Verdicts, Mirror: p.VerdictMirror,
		WithStatus: withStatus[*core.Verdict],
		ByKey:      core.VerdictByKey, DeleteAfter: mapsync.Grace,
	}
}

func egress(p *params, g *gates) mapsync.Config[*core.EgressRule, core.EgressKey, bpf.EgressValue] {
	return mapsync.Config[*core.EgressRule, core.EgressKey, bpf.EgressValue]{
		Map: p.Maps.Egress, Desired: p.EgressRules, Mirror: p.EgressMirror, Announce: true,
		WithStatus: withStatus[*core.EgressRule],
		ByKey: func(k core.EgressKey) statedb.Query[*core.EgressRule] {
			return core.EgressRuleByKey(core.EgressRuleKey{Ruleset: k.Ruleset, Destination: k.Prefix()})
		},
		Refers: func(row *core.EgressRule, _ *bpf.EgressValue) []mapsync.Reference {
			if row.Group == bpf.GroupExcluded {
				return nil
			}
			return []mapsync.Reference{g.group.On(row.Group)}
		},
		DeleteAfter: mapsync.Grace,
	}
}

func gateways(p *params) mapsync.Config[*tables.EgressGateway, bpf.GatewayKey, bpf.GatewayValue] {
	return mapsync.Config[*tables.EgressGateway, bpf.GatewayKey, bpf.GatewayValue]{
		Map: p.Maps.Gateways, Desired: p.Gateways, Mirror: p.GatewayMirror,
		WithStatus: tables.WithStatus[tables.EgressGateway],
		ByKey:      tables.EgressGatewayByKey, DeleteAfter: mapsync.Grace,
	}
}
