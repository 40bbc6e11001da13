// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/core"
)

// key is what the work is divided by.
type key struct {
	kind    kind
	addr    netip.Addr        // of a pod
	subject tables.LabelSetID // the subjects of a label set
	digest  bpf.Digest        // of a selector or a group
	policy  tables.PolicyID
}

type kind uint8

const (
	ofAddr kind = iota + 1
	ofSubject
	ofSelector
	ofGroup
	ofPolicy    // behind all label sets that a network policy selects
	ofUndesired // all objects that nothing desired refers to
)

func addrKey(addr netip.Addr) key { return key{kind: ofAddr, addr: addr} }

func subjectKey(set tables.LabelSetID) key { return key{kind: ofSubject, subject: set} }

func markLocal(_ statedb.ReadTxn, e *core.LocalEndpoint, mark func(key)) { mark(addrKey(e.Addr)) }

func movesPod(old, new *tables.Endpoint) bool {
	return old.LabelSet.ID != new.LabelSet.ID || old.Node != new.Node || !old.SameClaim(new)
}

// markEndpoint marks the addresses of a pod, unless this node is not its gateway and was not:
// addresses of its own pods are marked by their rows in local-endpoints.
func (r *rule) markEndpoint(in statedb.ReadTxn, e *tables.Endpoint, mark func(key)) {
	served := r.EgressPolicies.NumObjects(in) > 0
	for _, addr := range e.Addrs {
		if _, _, known := r.Pods.Get(in, core.PodByAddr(addr)); known || served {
			mark(addrKey(addr))
		}
	}
}

// markNamespace marks the label sets of a namespace whose labels have changed.
func (r *rule) markNamespace(in statedb.ReadTxn, old, new *tables.Namespace, mark func(key)) {
	if old != nil && new != nil && maps.Equal(old.Labels, new.Labels) {
		return
	}
	name := nameOf(old, new, func(n *tables.Namespace) string { return n.Name })
	for e := range r.Locals.List(in, core.LocalEndpointsByNamespace(name)) {
		mark(addrKey(e.Addr)) // it may have waited for the namespace
		if e.LabelSet != nil {
			mark(subjectKey(e.LabelSet.ID))
		}
	}
	if r.EgressPolicies.NumObjects(in) == 0 {
		return
	}
	for e := range r.Endpoints.Prefix(in, tables.EndpointsOfNamespace(name)) {
		mark(subjectKey(e.LabelSet.ID))
		for _, addr := range e.Addrs {
			mark(addrKey(addr))
		}
	}
}

func nameOf[Row, Name any](old, new *Row, name func(*Row) Name) Name {
	if new != nil {
		return name(new)
	}
	return name(old)
}

// markNode marks the groups that may elect a node, and what policies that select nodes by
// labels say of its pods.
func (r *rule) markNode(in statedb.ReadTxn, old, new *tables.Node, mark func(key)) {
	sameLabels := old != nil && new != nil && maps.Equal(old.Labels, new.Labels)
	if sameLabels && old.Ready == new.Ready && old.UnderlayIP() == new.UnderlayIP() {
		return
	}
	for g := range r.Groups.All(in) {
		if selectsNode(g.Gateways, old) || selectsNode(g.Gateways, new) {
			mark(key{kind: ofGroup, digest: g.Digest})
		}
	}
	if sameLabels {
		return
	}
	name := nameOf(old, new, func(n *tables.Node) string { return n.Name })
	if name == r.LocalNode.Name {
		for p := range r.EgressPolicies.All(in) { // this node may be a gateway, or no more
			r.markSources(in, p, mark)
		}
	}
	if _, _, found := r.EgressPolicies.Get(in, tables.EgressPoliciesOfNodes(true)); !found {
		return
	}
	for e := range r.Endpoints.All(in) {
		if e.Node == name {
			mark(subjectKey(e.LabelSet.ID))
			for _, addr := range e.Addrs {
				mark(addrKey(addr))
			}
		}
	}
}

func selectsNode(gateways []tables.GatewayChoice, n *tables.Node) bool {
	return n != nil && slices.ContainsFunc(gateways, func(c tables.GatewayChoice) bool {
		return isCandidate(c.Spec, n)
	})
}

// isCandidate reports whether a node may be elected for an item of a list of gateways.
func isCandidate(spec tables.GatewaySpec, n *tables.Node) bool {
	selector, err := labels.Parse(spec.Nodes)
	return err == nil && spec.Error == "" && selector.Matches(n.Labels)
}

// markNetworkPolicy marks the label sets of this node that a policy selects or selected.
func (r *rule) markNetworkPolicy(in statedb.ReadTxn, old, new *tables.NetworkPolicy, mark func(key)) {
	var subjects []tables.EgressSelector
	for _, p := range []*tables.NetworkPolicy{old, new} {
		if p != nil {
			for _, rule := range p.Rules {
				subjects = append(subjects, rule.Subject)
			}
		}
	}
	matchers := matchersOf(subjects)
	for s := range r.Subjects.List(in, core.SubjectsLocal(true)) {
		e, _, found := r.Locals.Get(in, core.LocalEndpointsByLabelSet(s.LabelSet))
		if found && r.mayMatch(in, matchers, e.LabelSet) {
			mark(subjectKey(s.LabelSet))
			// It may be the policy for which pods of a namespace that is not known wait.
			for e := range r.Locals.List(in, core.LocalEndpointsByLabelSet(s.LabelSet)) {
				mark(addrKey(e.Addr))
			}
		}
	}
	mark(key{kind: ofPolicy, policy: nameOf(old, new, func(p *tables.NetworkPolicy) tables.PolicyID { return p.ID() })})
}

func matchersOf(selectors []tables.EgressSelector) []*tables.PodMatcher {
	slices.SortFunc(selectors, func(a, b tables.EgressSelector) int {
		return cmp.Compare(a.String(), b.String())
	})
	var matchers []*tables.PodMatcher
	for _, s := range slices.Compact(selectors) {
		if m, err := tables.NewPodMatcher(s); err == nil {
			matchers = append(matchers, m)
		}
	}
	return matchers
}

// mayMatch reports whether one of some selectors selects a label set, or would if its
// namespace were known.
func (r *rule) mayMatch(in statedb.ReadTxn, matchers []*tables.PodMatcher, set *tables.LabelSet) bool {
	namespace, _, _ := r.Namespaces.Get(in, tables.NamespaceByName(set.Namespace))
	return slices.ContainsFunc(matchers, func(m *tables.PodMatcher) bool {
		return m.Matches(set, namespace) || namespace == nil && m.MayMatch(set)
	})
}

// markEgressPolicy marks the pods that a policy selects or selected.
func (r *rule) markEgressPolicy(in statedb.ReadTxn, old, new *tables.EgressPolicy, mark func(key)) {
	ofNodes := func(p *tables.EgressPolicy) bool {
		return p != nil && slices.ContainsFunc(p.Selectors, func(s tables.EgressSelector) bool { return s.Nodes != "" })
	}
	if ofNodes(old) != ofNodes(new) { // the subjects of other nodes may be told apart by nodes, or no more
		for p := range r.Pods.All(in) {
			if !p.Local {
				mark(addrKey(p.Addr))
			}
		}
	}
	for _, p := range []*tables.EgressPolicy{old, new} {
		if p != nil {
			mark(key{kind: ofGroup, digest: tables.GroupDigest(p.Gateways)})
			r.markSources(in, p, mark)
		}
	}
}

// markSources marks the label sets that an egress policy selects, here, and elsewhere if
// this node may be its gateway.
func (r *rule) markSources(in statedb.ReadTxn, p *tables.EgressPolicy, mark func(key)) {
	matchers := matchersOf(slices.Clone(p.Selectors))
	for s := range r.Subjects.All(in) {
		if set := tables.LabelSetByID(in, r.Endpoints, s.LabelSet); set != nil && r.mayMatch(in, matchers, set) {
			mark(subjectKey(s.LabelSet))
		}
	}
	for e := range r.Locals.All(in) {
		if e.LabelSet != nil && r.mayMatch(in, matchers, e.LabelSet) {
			mark(subjectKey(e.LabelSet.ID))
			mark(addrKey(e.Addr))
		}
	}
	if !r.serves(in, p) && !r.served(in, p) {
		return
	}
	for e := range r.Endpoints.All(in) {
		if r.mayMatch(in, matchers, e.LabelSet) {
			for _, addr := range e.Addrs {
				mark(addrKey(addr))
			}
		}
	}
}

// serves reports whether this node may be a gateway of a policy.
func (r *rule) serves(in statedb.ReadTxn, p *tables.EgressPolicy) bool {
	node, _, found := r.Nodes.Get(in, tables.NodeByName(r.LocalNode.Name))
	return found && slices.ContainsFunc(p.Gateways, func(g tables.GatewaySpec) bool { return isCandidate(g, node) })
}

// served reports whether this node might be a gateway of a policy when its group was
// computed last.
func (r *rule) served(in statedb.ReadTxn, p *tables.EgressPolicy) bool {
	g, _, found := r.Groups.Get(in, core.EgressGroupByDigest(tables.GroupDigest(p.Gateways)))
	return found && g.Local
}

// markUndesired marks the objects that nothing desired refers to, if there are some: the
// kernel may not refer to them any more either.
func (r *rule) markUndesired(in statedb.ReadTxn, mark func(key)) {
	_, _, subjects := r.Subjects.Get(in, core.SubjectsUndesired(true))
	_, _, rulesets := r.Rulesets.Get(in, core.RulesetsUndesired(true))
	_, _, egress := r.EgressRulesets.Get(in, core.EgressRulesetsUndesired(true))
	_, _, groups := r.Groups.Get(in, core.EgressGroupsUndesired(true))
	if subjects || rulesets || egress || groups {
		mark(key{kind: ofUndesired})
	}
}
