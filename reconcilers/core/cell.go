// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/core"
)

// Cell reconciles the maps of network policy and egress gateways.
var Cell = cell.Module(
	"core-maps",
	"Maps of network policy and egress gateways",

	cell.ProvidePrivate(
		core.NewPodMirrorTable,
		core.NewIPCacheMirrorTable,
		core.NewSubjectMirrorTable,
		core.NewRouteMirrorTable,
		core.NewPeerMirrorTable,
		core.NewPolicyMirrorTable,
		core.NewVerdictMirrorTable,
		core.NewEgressMirrorTable,
		core.NewGatewayMirrorTable,
	),
	cell.Provide(
		statedb.RWTable[*core.PodMirror].ToTable,
		statedb.RWTable[*core.IPCacheMirror].ToTable,
		statedb.RWTable[*core.SubjectMirror].ToTable,
		statedb.RWTable[*core.RouteMirror].ToTable,
		statedb.RWTable[*core.PeerMirror].ToTable,
		statedb.RWTable[*core.PolicyMirror].ToTable,
		statedb.RWTable[*core.VerdictMirror].ToTable,
		statedb.RWTable[*core.EgressMirror].ToTable,
		statedb.RWTable[*core.GatewayMirror].ToTable,
	),
	cell.Invoke(register),
)

// Maps are the maps that this package writes.
type Maps struct {
	Pods     bpf.Map[bpf.PodKey, core.PodValue]
	IPCache  bpf.Map[bpf.IPCacheKey, core.IPCacheValue]
	Subjects bpf.Map[core.SubjectKey, core.SubjectValue]
	Routes   bpf.Map[core.SubjectKey, core.RouteValue]
	Peers    bpf.Map[core.PeerKey, core.PeerValue]
	Policy   bpf.Map[core.PolicyKey, core.PolicyValue]
	Verdicts bpf.Map[core.VerdictKey, core.VerdictValue]
	Egress   bpf.Map[core.EgressKey, bpf.EgressValue]
	Gateways bpf.Map[bpf.GatewayKey, bpf.GatewayValue]
}

// Verdicts says what is to be done about the verdicts that connections keep. The functions
// are called by the loops of several maps, must not block, and retry what fails.
type Verdicts struct {
	// Raise raises the generation: the next packet of each connection is judged again.
	Raise func()

	// Flush removes the connections of addresses of pods that have come or gone.
	Flush func([]netip.Addr)
}

type params struct {
	cell.In

	mapsync.Params
	Maps Maps
	Kept Verdicts

	Pods          tables.Desired[*core.Pod]
	IPCache       tables.Desired[*core.IPCache]
	Subjects      tables.Desired[*core.Subject]
	Routes        tables.Desired[*core.Route]
	Members       tables.Desired[*core.Member]
	PolicyEntries tables.Desired[*core.PolicyEntry]
	Verdicts      tables.Desired[*core.Verdict]
	EgressRules   tables.Desired[*core.EgressRule]
	Gateways      tables.Desired[*tables.EgressGateway]

	PodMirror     statedb.RWTable[*core.PodMirror]
	IPCacheMirror statedb.RWTable[*core.IPCacheMirror]
	SubjectMirror statedb.RWTable[*core.SubjectMirror]
	RouteMirror   statedb.RWTable[*core.RouteMirror]
	PeerMirror    statedb.RWTable[*core.PeerMirror]
	PolicyMirror  statedb.RWTable[*core.PolicyMirror]
	VerdictMirror statedb.RWTable[*core.VerdictMirror]
	EgressMirror  statedb.RWTable[*core.EgressMirror]
	GatewayMirror statedb.RWTable[*core.GatewayMirror]

	Attachments    statedb.Table[*tables.Attachment]
	Rulesets       statedb.Table[*core.Ruleset]
	EgressRulesets statedb.Table[*core.EgressRuleset]
	VerdictSets    statedb.Table[*core.VerdictSet]
	Compiled       statedb.Table[*core.Compiled]
	Selectors      statedb.Table[*core.Selector]
	Matches        statedb.Table[*core.SelectorMatch]
	PeerPrefixes   statedb.Table[*core.PeerPrefix]
}
