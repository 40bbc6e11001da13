// SPDX-License-Identifier: Apache-2.0

// Package subjects derives the rulesets of pods: those of this node, and those that this node
// may be the gateway of.
//
//	local-endpoints, endpoints ─► pods ─► subjects ─┬─► rulesets ─► selectors
//	network-policies, namespaces ────────────▲      └─► subject-routes ─► egress-rulesets
//	egress-policies, nodes, gateway-health ──┘            ─► egress-rules ─► egress-groups
//
// A subject is a label set of pods. Its ruleset has the rules of all network policies that
// select these pods; its egress ruleset has those of all egress policies. Rulesets never
// change: when a policy changes, the label sets that it selects get new ones.
package subjects

import (
	"iter"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/verdicts"
)

// Cell derives the tables of subjects.
var Cell = cell.Module(
	"subjects",
	"Rulesets of pods",

	cell.Config(DefaultConfig),
	cell.ProvidePrivate(Config.cidrMatch, Config.maxEntries, roomOf, verdicts.RoomOf),
	cell.Provide(Config.enforcement),
	tables.OwnDesired(tables.NewPodTable),
	tables.OwnDesired(tables.NewSubjectTable),
	tables.OwnDesired(tables.NewSubjectRouteTable),
	tables.Own(tables.NewRulesetTable),
	tables.Own(tables.NewSelectorTable),
	tables.Own(tables.NewEgressRulesetTable),
	tables.OwnDesired(tables.NewEgressRuleTable),
	tables.Own(tables.NewEgressGroupTable),
	tables.Own(tables.NewCompiledPolicyTable),
	cell.Invoke(register),
)

type params struct {
	cell.In

	Locals          statedb.Table[*tables.LocalEndpoint]
	Endpoints       statedb.Table[*tables.Endpoint]
	Namespaces      statedb.Table[*tables.Namespace]
	Nodes           statedb.Table[*tables.Node]
	Health          statedb.Table[*tables.GatewayHealth]
	NetworkPolicies statedb.Table[*tables.NetworkPolicy]
	EgressPolicies  statedb.Table[*tables.EgressPolicy]
	EgressIPs       statedb.Table[*tables.EgressIP]
	CIDRGroups      statedb.Table[*tables.CIDRGroup]
	Services        statedb.Table[*tables.Service]
	Backends        statedb.Table[*tables.BackendSlice]

	Pods           statedb.RWTable[*tables.Pod]
	Subjects       statedb.RWTable[*tables.Subject]
	Routes         statedb.RWTable[*tables.SubjectRoute]
	Rulesets       statedb.RWTable[*tables.Ruleset]
	Selectors      statedb.RWTable[*tables.Selector]
	EgressRulesets statedb.RWTable[*tables.EgressRuleset]
	EgressRules    statedb.RWTable[*tables.EgressRule]
	Groups         statedb.RWTable[*tables.EgressGroup]
	Compiled       statedb.RWTable[*tables.CompiledPolicy]

	PodMirrors     statedb.Table[*tables.PodMirror]
	SubjectMirrors statedb.Table[*tables.SubjectMirror]
	RouteMirrors   statedb.Table[*tables.RouteMirror]
	EgressMirrors  statedb.Table[*tables.EgressMirror]

	Refusals statedb.Table[*tables.RulesetRefusal]
	Usage    statedb.Table[*tables.PolicyUsage]

	LocalNode   tables.LocalNode
	Enforcement tables.Enforcement
	CIDRMatch   CIDRMatch
	MaxEntries  MaxEntries
	Room        Room          // for members
	Maps        verdicts.Room // for policy entries and verdicts
}

// CIDRMatch is what the prefixes of Cilium's policies select inside the cluster.
type CIDRMatch struct{ Pods, Nodes bool }

// maxWork is how many rules of policies one transaction reads, with their peers, plus those for the
// last label set: there may be very many for each.
const maxWork = 10_000

// rule derives subjects. Its only state is the last number that it assigned.
type rule struct {
	params
	next    uint32
	maxWork int
}

func register(p derive.Params, params params) error {
	r := &rule{params: params, next: bpf.EmptyRuleset + 1, maxWork: maxWork}
	return derive.Register(p, r.declare())
}

func (r *rule) declare() derive.Rule[key] {
	return derive.Rule[key]{
		Name: "subjects",
		Outputs: []statedb.TableMeta{
			r.Pods, r.Subjects, r.Routes, r.Rulesets, r.Selectors, r.EgressRulesets,
			r.EgressRules, r.Groups, r.Compiled,
		},
		// At first all addresses are computed, and with them whatever they come to.
		Inputs: []derive.Input[key]{
			derive.From(r.Locals, markLocal),
			derive.FromIf(r.Endpoints, movesPod, r.markEndpoint),
			derive.Later(derive.FromChange(r.Namespaces, r.markNamespace)),
			derive.Later(derive.FromChange(r.Nodes, r.markNode)),
			derive.FromIf(r.Health, isLostOtherwise, r.markHealth),
			derive.FromChange(r.NetworkPolicies, r.markNetworkPolicy),
			derive.Later(derive.FromChange(r.EgressPolicies, r.markEgressPolicy)),
			derive.FromChange(r.EgressPolicies, markFirst),
			derive.FromIf(r.EgressIPs, movesEgressIP, r.markEgressIP),
			derive.Later(derive.FromChange(r.CIDRGroups, r.markCIDRGroup)),
			derive.Later(derive.FromChange(r.Services, r.markService)),
			derive.Later(derive.FromIf(r.Backends, tables.DifferentBackends, r.markBackends)),
			derive.Feedback(derive.OnChange(r.PodMirrors, r.markUndesired)),
			derive.Feedback(derive.OnChange(r.SubjectMirrors, r.markUndesired)),
			derive.Feedback(derive.OnChange(r.RouteMirrors, r.markUndesired)),
			derive.Feedback(derive.OnChange(r.EgressMirrors, r.markUndesired)),
			derive.Feedback(derive.From(r.Refusals, markRefusal)),
			derive.Feedback(derive.FromChange(r.Usage, markUsage)),
		},
		Last:    func(k key) bool { return k.kind == ofPolicy },
		Large:   func(k key) bool { return k.late },
		Compute: r.compute,
	}
}

// round is one call of Compute, with what it has computed so far from its snapshot.
type round struct {
	*rule
	in   statedb.ReadTxn
	out  statedb.WriteTxn
	mark func(key)

	matchers map[tables.EgressSelector]*tables.PodMatcher // those parsed
	serves   map[*tables.EgressPolicy]bool                // see isServedHere
	served   map[tables.SubjectDef]bool                   // of pods of other nodes
	subjects map[tables.SubjectDef]uint32                 // those brought up to date
	prefixes map[*tables.EgressPolicy]*egressPrefixes     // of those looked at

	rules map[tables.PolicyID]map[tables.RuleID]*tables.Rule // see share

	peersOf map[*tables.PolicyTraffic]*peersOf // of items of policies
	used    *use                               // by selectors, nil until it is asked for
	sizes   *sizes                             // of rulesets, likewise
	grown   bool                               // a selector in use names more prefixes
	work    int                                // see maxWork

	elections tables.Elections
}

func (r *rule) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, keys []key, mark func(key),
) error {
	c := &round{
		rule: r, in: in, out: out, mark: mark,
		matchers: map[tables.EgressSelector]*tables.PodMatcher{},
		serves:   map[*tables.EgressPolicy]bool{},
		served:   map[tables.SubjectDef]bool{},
		subjects: map[tables.SubjectDef]uint32{},
		peersOf:  map[*tables.PolicyTraffic]*peersOf{},
		prefixes: map[*tables.EgressPolicy]*egressPrefixes{},
		rules:    map[tables.PolicyID]map[tables.RuleID]*tables.Rule{},

		elections: tables.Elections{
			Nodes:     func() iter.Seq2[*tables.Node, statedb.Revision] { return r.Nodes.All(in) },
			LocalNode: r.LocalNode.Name,
			IsLost: func(node string) bool {
				h, _, probed := r.Health.Get(in, tables.GatewayHealthByNode(node))
				return probed && h.Lost()
			},
		},
	}
	for _, k := range keys {
		if c.work >= c.maxWork {
			k.late = true
			c.mark(k) // in order: a policy comes after its pods
		} else if err := c.computeKey(k); err != nil {
			return err
		}
	}
	return nil
}

func (c *round) computeKey(k key) error {
	switch k.kind {
	case ofAddr:
		return c.pod(k.addr)
	case ofSelector:
		return c.updateSelector(k.digest)
	case ofGroup:
		return c.updateGroup(k.digest)
	case ofPolicy:
		return c.compiled(k.policy)
	case ofRefusal:
		return c.isolateRefused(k.number)
	case ofRetry:
		c.retry()
		return nil
	}
	return c.sweep()
}

// matcher parses a selector, once.
func (c *round) matcher(s tables.EgressSelector) *tables.PodMatcher {
	m, parsed := c.matchers[s]
	if !parsed {
		m, _ = tables.NewPodMatcher(s) // its text is canonical: it comes from one that was parsed
		c.matchers[s] = m
	}
	return m
}

// number returns a number that no object has had.
func (r *rule) number() uint32 {
	n := r.next
	r.next++
	return n
}
