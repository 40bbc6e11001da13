// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Egress says by which gateway a new connection leaves, and with which address.
// An error that is an [Error] is about the question.
func (e *Explainer) Egress(from, to string) (answer *Egress, err error) {
	agreed(func() int {
		if answer, err = e.egress(from, to); err != nil {
			return 0
		}
		return len(answer.Differences)
	})
	return answer, err
}

func (e *Explainer) egress(from, to string) (*Egress, error) {
	txn := e.t.DB.ReadTxn()
	if err := e.ready(txn); err != nil {
		return nil, err
	}
	a, b, err := e.parties(txn, from, to)
	if err != nil {
		return nil, err
	}
	if !a.Address.IsValid() {
		return nil, errorf(FieldFrom, "%s is no single address", from)
	}
	tablesView := &wanted{e, txn}
	answer := &Egress{
		From: a, To: b, Way: wayOf(tablesView, a, b), Policies: []string{}, Differences: []string{},
	}
	if answer.Verdict == NotJudged && a.Pod != "" {
		answer.Ask = a.Node
	}
	e.addNames(txn, tablesView, answer)
	answer.Translated = e.translated(txn, a, b)
	backend := e.backend()
	if backend == "" {
		return answer, nil
	}
	maps := &present{Explainer: e, txn: txn}
	answer.Kernel = &EgressInKernel{Backend: backend, Slots: maps.slots(), Way: wayOf(maps, a, b)}
	answer.Kernel.Detail, answer.Kernel.Rules = "", e.kernelRules(tablesView, answer, b)
	answer.Differences = answer.differences()
	return answer, maps.failed()
}

// wayOf decides as the programs at the pod's device and at the overlay do.
func wayOf(v view, from, to Party) Way {
	way := Way{Verdict: Allowed, Reason: bpf.ReasonPassed.String(), Rules: []Rule{}}
	pod, known := v.pod(from.Address)
	here := known && pod.Flags&bpf.PodLocal != 0
	way.Subject = pod.Subject
	route, chosen := v.route(pod.Subject)
	chosen = known && chosen
	way.Ruleset = route.EgressRuleset
	peer, _ := v.known(to.place())
	source, _ := v.known(from.place())
	switch {
	case !known && source.Flags&bpf.IPCacheLocalPods != 0 && peer.Flags == 0 &&
		v.covered(to.place()):
		return way.dropped(bpf.ReasonPodNotReady, "the pod is not in the kernel yet")
	case !here && !chosen:
		way.Verdict, way.Reason = NotJudged, ReasonNotFromHere
		way.Detail = "nor one that this node may be the gateway of"
	case peer.Flags != 0 && here:
		way.Detail = "egress policies do not apply to the destination: " + peer.Flags.String()
	case peer.Flags != 0:
		return way.dropped(
			bpf.ReasonNoRule,
			"egress policies do not apply to the destination: "+peer.Flags.String(),
		)
	case pod.Subject == 0 && v.covered(to.place()):
		return way.dropped(
			bpf.ReasonPodNotReady, "what egress policies want of the pod is not in the kernel yet",
		)
	case pod.Subject == 0:
		way.Detail = "no egress policy names the destination"
	case !chosen:
		way.Detail = "no egress policy selects the pod"
	default:
		return way.byRule(v, from, to, here)
	}
	return way
}

// byRule follows the rule of the egress ruleset that covers the destination.
func (w Way) byRule(v view, from, to Party, here bool) Way {
	rule, entry, ok := v.egress(w.Ruleset, to.place())
	w.Entry = entry
	switch {
	case ok && rule.Group != bpf.GroupExcluded:
	case !here:
		return w.dropped(bpf.ReasonNoRule, "no policy of this node redirects it")
	case ok:
		w.Detail = "the policy excludes the destination"
		return w
	default:
		w.Detail = "no policy that selects the pod names the destination"
		return w
	}
	w.Group, w.Bucket = rule.Group, bucketOf(from.Address)
	gateway, ok := v.gateway(bpf.GatewayKey{Group: w.Group, Bucket: w.Bucket})
	if block, moves := v.block(gateway.Gateway); moves && here {
		egress := gateway.Gateway.Addr()
		if egress.Is4() == to.place().Addr().Is4() {
			return w.byBlock(egress, block)
		}
		gateway.Gateway = block.Gateway
	}
	if !ok || gateway.Gateway == (bpf.Address{}) {
		return w.dropped(bpf.ReasonNoGateway, "no node is the gateway")
	}
	w.Gateway = gateway.Gateway.Addr()
	w.EgressIP = egressOf(gateway, to.place().Addr())
	switch {
	case here && gateway.Gateway != v.config().Underlay:
		w.Reason = bpf.ReasonToGateway.String()
	case !w.EgressIP.IsValid():
		return w.dropped(
			bpf.ReasonNoEgressIP, "this node is the gateway, and has no egress address of the family",
		)
	default:
		w.Reason, w.IfIndex = bpf.ReasonTranslated.String(), gateway.IfIndex
	}
	return w
}

// byBlock is how traffic leaves with an egress address of a pool: this node translates it.
func (w Way) byBlock(egress netip.Addr, block bpf.BlockValue) Way {
	w.EgressIP, w.Gateway = egress, block.Gateway.Addr()
	switch {
	case !w.Gateway.IsValid():
		return w.dropped(bpf.ReasonNoGateway, "no node has the egress address")
	case block.Ports[0] == (bpf.PortRange{}):
		return w.dropped(bpf.ReasonNoPortBlock, "this node has no ports of the egress address")
	}
	w.Reason = bpf.ReasonTranslated.String()
	w.Detail = "this node translates, as the egress address has blocks of ports"
	return w
}

func (w Way) dropped(reason bpf.Reason, detail string) Way {
	w.Verdict, w.Reason, w.Detail = Denied, reason.String(), detail
	return w
}

// egressOf returns the address with which packets of a family leave a gateway.
func egressOf(v bpf.GatewayValue, destination netip.Addr) netip.Addr {
	switch {
	case !destination.Is4():
		return v.Egress6.Addr()
	case v.Egress4 != [4]byte{}:
		return netip.AddrFrom4(v.Egress4)
	}
	return netip.Addr{}
}

// bucketOf returns the bucket of a sender: FNV-1a of its address, as in the programs.
func bucketOf(addr netip.Addr) uint32 {
	hash := uint32(2166136261)
	for _, b := range bpf.AddressFrom(addr) {
		hash = (hash ^ uint32(b)) * 16777619
	}
	return hash % bpf.GatewayBuckets
}

// addNames adds what only the tables have: names and reasons.
func (e *Explainer) addNames(txn statedb.ReadTxn, v *wanted, answer *Egress) {
	query := tables.EgressRulesetByNumber(answer.Ruleset)
	if ruleset, _, ok := e.t.EgressRulesets.Get(txn, query); ok {
		answer.Policies = append(answer.Policies, ruleset.Policies...)
	}
	if row := v.egressRule(answer.Ruleset, answer.To.place()); row != nil && answer.Entry != nil {
		answer.Destination, answer.Overrides = row.Destination, row.Overrides
		answer.Rules = []Rule{egressRule(row)}
	}
	if answer.Group == 0 {
		return
	}
	row, _, ok := e.t.Gateways.Get(
		txn, tables.EgressGatewayByKey(bpf.GatewayKey{Group: answer.Group, Bucket: answer.Bucket}),
	)
	if !ok {
		return
	}
	answer.GatewayNode, answer.Device = row.Node, row.Device
	if row.Reason != "" && answer.Verdict == Denied {
		answer.Detail = row.Reason
	}
}

// translated names the ports that kube-proxy translates for the sender, which do not leave by a
// gateway.
func (e *Explainer) translated(txn statedb.ReadTxn, from, to Party) (ports []string) {
	if !to.Address.IsValid() {
		return nil
	}
	v := &wanted{e, txn}
	pod, _ := v.pod(from.Address)
	for s := range e.servicesAt(txn, to.Address) {
		for _, port := range s.Ports {
			p := packet{to: to.place(), traffic: Traffic{Protocol: port.Protocol, Port: port.Port}}
			known, _ := v.known(p.to)
			if led, _ := leadsOf(v, p, pod); led == leadsOn && known.Flags == 0 {
				ports = append(ports, fmt.Sprintf("%s (service %s)", p.traffic, s.Name))
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

func egressRule(row *tables.EgressRule) Rule {
	verdict := "redirect"
	if row.Group == bpf.GroupExcluded {
		verdict = "exclude"
	}
	return Rule{Policy: row.Policy, Field: row.Destination.String(), Verdict: verdict}
}

// kernelRules returns the rules of the kernel's entry: the maps do not name policies, so they are
// those of the desired row with the same key.
func (e *Explainer) kernelRules(v *wanted, answer *Egress, to Party) []Rule {
	rules := []Rule{}
	entry := answer.Kernel.Entry
	if entry == nil {
		return rules
	}
	row := v.egressRule(answer.Kernel.Ruleset, to.place())
	if row != nil && row.MapKey().String() == entry.Key {
		rules = append(rules, egressRule(row))
	}
	return rules
}

// differences says where the maps lead elsewhere than the tables.
func (a *Egress) differences() []string {
	texts := []string{}
	differ := func(what string, want, got any) {
		if want != got {
			texts = append(texts, fmt.Sprintf("by the tables %s %v, by the maps %v", what, want, got))
		}
	}
	want, got := a.Way, a.Kernel.Way
	differ("it is", want.Reason, got.Reason)
	differ("egress ruleset", want.Ruleset, got.Ruleset)
	differ("group", want.Group, got.Group)
	differ("gateway", want.Gateway, got.Gateway)
	differ("egress address", want.EgressIP, got.EgressIP)
	differ("interface", want.IfIndex, got.IfIndex)
	if w, g := entryText(want.Entry), entryText(got.Entry); w != g {
		differ("entry", w, g)
	}
	return texts
}

func entryText(e *Entry) string {
	if e == nil {
		return "none"
	}
	return e.Key + " -> " + e.Value
}

// why is the reason with the policy.
func (w Way) why() string {
	parts := []string{w.Reason}
	for _, r := range w.Rules {
		parts = append(parts, fmt.Sprintf("%s (%s)", r.Policy, r.Field))
	}
	return strings.Join(parts, " ")
}
