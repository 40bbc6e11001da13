// SPDX-License-Identifier: Apache-2.0

package rulesets

import (
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/reconcilers/mapsync"
	"github.com/sluice-net/sluice/tables"
)

// Cell reconciles the maps of network policy and egress gateways.
var Cell = cell.Module(
	"ruleset-maps",
	"Maps of network policy and egress gateways",

	tables.Own(tables.NewPodMirrorTable),
	tables.Own(tables.NewIPCacheMirrorTable),
	tables.Own(tables.NewFrontendMirrorTable),
	tables.Own(tables.NewSubjectMirrorTable),
	tables.Own(tables.NewRouteMirrorTable),
	tables.Own(tables.NewPeerMirrorTable),
	tables.Own(tables.NewPolicyMirrorTable),
	tables.Own(tables.NewVerdictMirrorTable),
	tables.Own(tables.NewEgressMirrorTable),
	tables.Own(tables.NewGatewayMirrorTable),
	cell.Invoke(register),
)

// Maps are the maps that this package writes.
type Maps struct {
	Pods      bpf.Map[bpf.PodKey, bpf.PodValue]
	IPCache   bpf.Map[bpf.IPCacheKey, bpf.IPCacheValue]
	Frontends bpf.Map[bpf.FrontendKey, bpf.FrontendValue]
	Subjects  bpf.Map[bpf.SubjectKey, bpf.SubjectValue]
	Routes    bpf.Map[bpf.SubjectKey, bpf.RouteValue]
	Peers     bpf.Map[bpf.PeerKey, bpf.PeerValue]
	Policy    bpf.Map[bpf.PolicyKey, bpf.PolicyValue]
	Verdicts  bpf.Map[bpf.VerdictKey, bpf.VerdictValue]
	Egress    bpf.Map[bpf.EgressKey, bpf.EgressValue]
	Gateways  bpf.Map[bpf.GatewayKey, bpf.GatewayValue]
}

// Verdicts acts on the verdicts that connections have cached. Loops of several maps call these
// functions. They must not block, and retry what fails.
type Verdicts struct {
	// Raise raises the generation: the agent's programs judge the next packet of each connection
	// again.
	Raise func()

	// RaiseSoon does the same, once for several calls within a second.
	RaiseSoon func()

	// Flush removes the connections of addresses whose pods have gone.
	Flush func([]netip.Addr)
}

type params struct {
	cell.In

	mapsync.Params
	Maps Maps
	Kept Verdicts

	Pods          tables.Desired[*tables.Pod]
	IPCache       tables.Desired[*tables.IPCache]
	Frontends     tables.Desired[*tables.Frontend]
	Subjects      tables.Desired[*tables.Subject]
	Routes        tables.Desired[*tables.SubjectRoute]
	Members       tables.Desired[*tables.Member]
	PolicyEntries tables.Desired[*tables.PolicyEntry]
	Verdicts      tables.Desired[*tables.Verdict]
	EgressRules   tables.Desired[*tables.EgressRule]
	Gateways      tables.Desired[*tables.EgressGateway]

	PodMirror      statedb.RWTable[*tables.PodMirror]
	IPCacheMirror  statedb.RWTable[*tables.IPCacheMirror]
	FrontendMirror statedb.RWTable[*tables.FrontendMirror]
	SubjectMirror  statedb.RWTable[*tables.SubjectMirror]
	RouteMirror    statedb.RWTable[*tables.RouteMirror]
	PeerMirror     statedb.RWTable[*tables.PeerMirror]
	PolicyMirror   statedb.RWTable[*tables.PolicyMirror]
	VerdictMirror  statedb.RWTable[*tables.VerdictMirror]
	EgressMirror   statedb.RWTable[*tables.EgressMirror]
	GatewayMirror  statedb.RWTable[*tables.GatewayMirror]

	Attachments    statedb.Table[*tables.Attachment]
	Rulesets       statedb.Table[*tables.Ruleset]
	Classes        statedb.Table[*tables.Class]
	EgressRulesets statedb.Table[*tables.EgressRuleset]
	VerdictSets    statedb.Table[*tables.VerdictSet]
	Compiled       statedb.Table[*tables.Compiled]
	Selectors      statedb.Table[*tables.Selector]
	Matches        statedb.Table[*tables.SelectorMatch]
	PeerPrefixes   statedb.Table[*tables.PeerPrefix]
}
