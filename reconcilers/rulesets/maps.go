// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"errors"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
)

func register(p params) error {
	g := newGates(&p)
	return errors.Join(
		mapsync.Register(p.Params, pods(&p, g)),
		mapsync.Register(p.Params, ipcache(&p, g)),
		mapsync.Register(p.Params, frontends(&p, g)),
		mapsync.Register(p.Params, subjects(&p, g)),
		mapsync.Register(p.Params, routes(&p, g)),
		mapsync.Register(p.Params, peers(&p, g)),
		mapsync.Register(p.Params, policy(&p, g)),
		mapsync.Register(p.Params, verdicts(&p)),
		mapsync.Register(p.Params, egress(&p, g)),
		mapsync.Register(p.Params, gateways(&p)),
	)
}

func pods(p *params, g *gates) mapsync.Config[*tables.Pod, bpf.PodKey, bpf.PodValue] {
	return mapsync.Config[*tables.Pod, bpf.PodKey, bpf.PodValue]{
		Map: p.Maps.Pods, Desired: p.Pods, Mirror: p.PodMirror, PublishIntent: true,
		WithStatus: tables.WithStatus[tables.Pod],
		ByKey: func(k bpf.PodKey) statedb.Query[*tables.Pod] {
			return tables.PodByAddr(k.Addr.Addr())
		},
		Refers: func(row *tables.Pod, kernel *bpf.PodValue) (refers []mapsync.Reference) {
			// A pod without a subject is held.
			if row.Subject != 0 && (kernel == nil || kernel.Subject != row.Subject) {
				refers = append(refers, g.subject.On(row.Subject))
			}
			if row.IfIndex != 0 && (kernel == nil || kernel.IfIndex != row.IfIndex) {
				refers = append(refers, g.device.On(row.IfIndex))
			}
			return refers
		},
		// No programs are attached to the pod's new device. The pod is held meanwhile.
		DeleteWhileBlocked: func(row *tables.Pod, kernel bpf.PodValue) bool {
			return kernel.IfIndex != 0 && kernel.IfIndex != row.IfIndex
		},
		Revises: func(old, new *bpf.PodValue) bool {
			return old != nil && new != nil && old.Subject != new.Subject
		},
		Raise:   p.Kept.Raise,
		Flushes: func(_, new *bpf.PodValue) bool { return new == nil },
		Flush: func(keys []bpf.PodKey) {
			addrs := make([]netip.Addr, len(keys))
			for i, k := range keys {
				addrs[i] = k.Addr.Addr()
			}
			p.Kept.Flush(addrs)
		},
	}
}

func ipcacheByKey(k bpf.IPCacheKey) statedb.Query[*tables.IPCache] {
	return tables.IPCacheByPrefix(k.Prefix())
}

func ipcache(
	p *params, g *gates,
) mapsync.Config[*tables.IPCache, bpf.IPCacheKey, bpf.IPCacheValue] {
	isPod := func(v *bpf.IPCacheValue) bool { return v != nil && v.Flags&bpf.IPCachePod != 0 }
	return mapsync.Config[*tables.IPCache, bpf.IPCacheKey, bpf.IPCacheValue]{
		Map: p.Maps.IPCache, Desired: p.IPCache, Mirror: p.IPCacheMirror, PublishIntent: true,
		WithStatus: tables.WithStatus[tables.IPCache],
		ByKey:      ipcacheByKey,
		Refers: func(row *tables.IPCache, kernel *bpf.IPCacheValue) []mapsync.Reference {
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
				g.prefixesInside.OnPrefix(k.Prefix()), g.prefixesAround.OnPrefix(k.Prefix()),
			}
		},
		Owner: func(row *tables.IPCache) uint32 { return row.Member },
		Made:  func(row *tables.IPCache) uint64 { return row.Made },
		Revises: func(old, new *bpf.IPCacheValue) bool {
			if old == nil || new == nil {
				return !isPod(old) && !isPod(new)
			}
			return old.Member != new.Member || old.Flags != new.Flags
		},
		Raise: p.Kept.Raise,
		Flushes: func(old, new *bpf.IPCacheValue) bool {
			return old == nil && isPod(new) || new == nil && isPod(old)
		},
		Flush: p.flushPods,
	}
}

// flushPods removes the connections of pods that have gone. Connections of pods that were unknown
// until now were judged as those of an address outside of the cluster: they are judged again.
func (p *params) flushPods(keys []bpf.IPCacheKey) {
	var gone []netip.Addr
	txn := p.DB.ReadTxn()
	for _, k := range keys {
		key := tables.MirrorByKey[bpf.IPCacheKey, bpf.IPCacheValue](k)
		if _, _, found := p.IPCacheMirror.Get(txn, key); !found {
			gone = append(gone, k.Prefix().Addr())
		}
	}
	p.Kept.Flush(gone)
	if len(gone) < len(keys) {
		p.Kept.RaiseSoon()
	}
}

// frontends refer to nothing, as their backends are addresses. Those that are refused wait for room.
func frontends(
	p *params, g *gates,
) mapsync.Config[*tables.Frontend, bpf.FrontendKey, bpf.FrontendValue] {
	return mapsync.Config[*tables.Frontend, bpf.FrontendKey, bpf.FrontendValue]{
		Map: p.Maps.Frontends, Desired: p.Frontends, Mirror: p.FrontendMirror,
		WithStatus: tables.WithStatus[tables.Frontend],
		ByKey:      tables.FrontendByKey,
		Refers: func(row *tables.Frontend, _ *bpf.FrontendValue) []mapsync.Reference {
			if row.Refused {
				return []mapsync.Reference{{To: g.room}}
			}
			return nil
		},
		DeleteWhileBlocked: func(*tables.Frontend, bpf.FrontendValue) bool { return true },
		Revises:            func(_, _ *bpf.FrontendValue) bool { return true },
		Raise:              p.Kept.Raise,
	}
}

func subjects(
	p *params, g *gates,
) mapsync.Config[*tables.Subject, bpf.SubjectKey, bpf.SubjectValue] {
	return mapsync.Config[*tables.Subject, bpf.SubjectKey, bpf.SubjectValue]{
		Map: p.Maps.Subjects, Desired: p.Subjects, Mirror: p.SubjectMirror, PublishIntent: true,
		WithStatus: tables.WithStatus[tables.Subject],
		ByKey: func(k bpf.SubjectKey) statedb.Query[*tables.Subject] {
			return tables.SubjectByNumber(k.Subject)
		},
		Refers: func(row *tables.Subject, _ *bpf.SubjectValue) []mapsync.Reference {
			if row.Ruleset <= bpf.EmptyRuleset {
				return nil // they have no entries
			}
			return []mapsync.Reference{g.ruleset.On(row.Ruleset)}
		},
		DeleteAfter: p.Control.Grace(),
		Revises:     func(old, new *bpf.SubjectValue) bool { return old != nil && new != nil },
		Raise:       p.Kept.Raise,
	}
}

func routes(
	p *params, g *gates,
) mapsync.Config[*tables.SubjectRoute, bpf.SubjectKey, bpf.RouteValue] {
	return mapsync.Config[*tables.SubjectRoute, bpf.SubjectKey, bpf.RouteValue]{
		Map: p.Maps.Routes, Desired: p.Routes, Mirror: p.RouteMirror, PublishIntent: true,
		WithStatus: tables.WithStatus[tables.SubjectRoute],
		ByKey: func(k bpf.SubjectKey) statedb.Query[*tables.SubjectRoute] {
			return tables.RouteBySubject(k.Subject)
		},
		Refers: func(row *tables.SubjectRoute, _ *bpf.RouteValue) []mapsync.Reference {
			return []mapsync.Reference{g.egressRuleset.On(row.EgressRuleset)}
		},
		DeleteAfter: p.Control.Grace(),
		// A pod that an egress policy newly selects may have connections without a gateway.
		Revises: func(_, _ *bpf.RouteValue) bool { return true },
		Raise:   p.Kept.Raise,
	}
}

func peers(p *params, g *gates) mapsync.Config[*tables.Member, bpf.PeerKey, bpf.PeerValue] {
	return mapsync.Config[*tables.Member, bpf.PeerKey, bpf.PeerValue]{
		Map: p.Maps.Peers, Desired: p.Members, Mirror: p.PeerMirror, PublishIntent: true,
		WithStatus: tables.WithStatus[tables.Member],
		ByKey: func(k bpf.PeerKey) statedb.Query[*tables.Member] {
			return tables.MemberByNumber(k.Member)
		},
		Refers: func(row *tables.Member, _ *bpf.PeerValue) []mapsync.Reference {
			return []mapsync.Reference{g.class.On(row.Class)}
		},
		Made:        func(row *tables.Member) uint64 { return row.Made },
		DeleteAfter: p.Control.Grace(),
		Revises:     func(old, new *bpf.PeerValue) bool { return old != nil && new != nil },
		Raise:       p.Kept.Raise,
	}
}

// policy does not publish intents. An entry is only deleted together with its ruleset or class,
// when nothing in the kernel refers to that any more, so it keeps no verdict set alive.
func policy(
	p *params, g *gates,
) mapsync.Config[*tables.PolicyEntry, bpf.PolicyKey, bpf.PolicyValue] {
	return mapsync.Config[*tables.PolicyEntry, bpf.PolicyKey, bpf.PolicyValue]{
		Map: p.Maps.Policy, Desired: p.PolicyEntries, Mirror: p.PolicyMirror,
		WithStatus: tables.WithStatus[tables.PolicyEntry],
		ByKey:      tables.PolicyEntryByKey,
		Refers: func(row *tables.PolicyEntry, _ *bpf.PolicyValue) []mapsync.Reference {
			return []mapsync.Reference{g.verdictSet.On(row.Set)}
		},
		Owner:       func(row *tables.PolicyEntry) uint32 { return row.Ruleset },
		DeleteAfter: p.Control.Grace(),
	}
}

func verdicts(p *params) mapsync.Config[*tables.Verdict, bpf.VerdictKey, bpf.VerdictValue] {
	return mapsync.Config[*tables.Verdict, bpf.VerdictKey, bpf.VerdictValue]{
		Map: p.Maps.Verdicts, Desired: p.Verdicts, Mirror: p.VerdictMirror,
		WithStatus: tables.WithStatus[tables.Verdict],
		ByKey:      tables.VerdictByKey, DeleteAfter: p.Control.Grace(),
		Owner: func(row *tables.Verdict) uint32 { return row.Key.Set },
	}
}

func egress(
	p *params, g *gates,
) mapsync.Config[*tables.EgressRule, bpf.EgressKey, bpf.EgressValue] {
	return mapsync.Config[*tables.EgressRule, bpf.EgressKey, bpf.EgressValue]{
		Map: p.Maps.Egress, Desired: p.EgressRules, Mirror: p.EgressMirror, PublishIntent: true,
		WithStatus: tables.WithStatus[tables.EgressRule],
		ByKey: func(k bpf.EgressKey) statedb.Query[*tables.EgressRule] {
			return tables.EgressRuleByKey(tables.EgressRuleKey{
				Ruleset: k.Ruleset, Destination: k.Prefix(),
			})
		},
		Refers: func(row *tables.EgressRule, _ *bpf.EgressValue) []mapsync.Reference {
			if row.Group == bpf.GroupExcluded {
				return nil
			}
			return []mapsync.Reference{g.group.On(row.Group)}
		},
		Owner:       func(row *tables.EgressRule) uint32 { return row.Ruleset },
		DeleteAfter: p.Control.Grace(),
	}
}

func gateways(p *params) mapsync.Config[*tables.EgressGateway, bpf.GatewayKey, bpf.GatewayValue] {
	return mapsync.Config[*tables.EgressGateway, bpf.GatewayKey, bpf.GatewayValue]{
		Map: p.Maps.Gateways, Desired: p.Gateways, Mirror: p.GatewayMirror,
		WithStatus: tables.WithStatus[tables.EgressGateway],
		ByKey:      tables.EgressGatewayByKey, DeleteAfter: p.Control.Grace(),
		Owner: func(row *tables.EgressGateway) uint32 { return row.Group },
	}
}
