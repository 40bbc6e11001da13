// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// key is a unit of work.
type key struct {
	kind   kind
	addr   netip.Addr // of a pod
	digest bpf.Digest // of a selector or a group
	policy tables.PolicyID
	number uint32 // of a ruleset
	late   bool   // a transaction was full before its turn: others go first
}

type kind uint8

const (
	ofAddr kind = iota + 1
	ofSelector
	ofGroup
	ofPolicy    // a network policy, after the pods that it selects
	ofUndesired // all undesired objects
	ofRefusal   // a ruleset that the maps have no room for
	ofRetry     // all such rulesets, when there may be room
)

func addrKey(addr netip.Addr) key { return key{kind: ofAddr, addr: addr} }

func markLocal(_ statedb.ReadTxn, e *tables.LocalEndpoint, mark func(key)) { mark(addrKey(e.Addr)) }

func movesPod(old, new *tables.Endpoint) bool {
	return old.LabelSet.ID != new.LabelSet.ID || old.Node != new.Node || !old.SameClaim(new)
}

// markEndpoint marks the addresses of a pod, unless this node is not its gateway and was not.
// Addresses of this node's pods are marked by their rows in local-endpoints.
func (r *rule) markEndpoint(in statedb.ReadTxn, e *tables.Endpoint, mark func(key)) {
	served := r.EgressPolicies.NumObjects(in) > 0
	for _, addr := range e.Addrs {
		if served || r.hasPod(in, addr) {
			mark(addrKey(addr))
		}
	}
}

func (r *rule) hasPod(in statedb.ReadTxn, addr netip.Addr) bool {
	_, _, found := r.Pods.Get(in, tables.PodByAddr(addr))
	return found
}

// markNamespace marks the pods of a namespace whose labels have changed.
func (r *rule) markNamespace(in statedb.ReadTxn, old, new *tables.Namespace, mark func(key)) {
	if old != nil && new != nil && maps.Equal(old.Labels, new.Labels) {
		return
	}
	name := nameOf(old, new, func(n *tables.Namespace) string { return n.Name })
	for e := range r.Locals.List(in, tables.LocalEndpointsByNamespace(name)) {
		mark(addrKey(e.Addr))
	}
	for e := range r.Endpoints.Prefix(in, tables.EndpointsOfNamespace(name)) {
		r.markEndpoint(in, e, mark)
	}
}

func nameOf[Row, Name any](old, new *Row, name func(*Row) Name) Name {
	if new != nil {
		return name(new)
	}
	return name(old)
}

func isLostOtherwise(old, new *tables.GatewayHealth) bool { return old.Lost() != new.Lost() }

// markHealth marks the groups that may elect a node.
func (r *rule) markHealth(in statedb.ReadTxn, h *tables.GatewayHealth, mark func(key)) {
	node, _, found := r.Nodes.Get(in, tables.NodeByName(h.Node))
	if !found {
		return
	}
	for g := range r.Groups.All(in) {
		if slices.ContainsFunc(g.Gateways, func(c tables.GatewayChoice) bool {
			return isCandidate(c.Spec, node)
		}) {
			mark(key{kind: ofGroup, digest: g.Digest})
		}
	}
}

// markNode marks the groups that may elect a node. It also marks the node's pods if policies with
// node selectors now select another set of them.
func (r *rule) markNode(in statedb.ReadTxn, old, new *tables.Node, mark func(key)) {
	sameLabels := old != nil && new != nil && maps.Equal(old.Labels, new.Labels)
	sameGateway := old != nil && new != nil && old.Ready == new.Ready &&
		old.Draining == new.Draining && old.UnderlayIP() == new.UnderlayIP()
	if sameLabels && sameGateway {
		return
	}
	for g := range r.Groups.All(in) {
		if slices.ContainsFunc(g.Gateways, func(c tables.GatewayChoice) bool {
			was, is := isCandidate(c.Spec, old), isCandidate(c.Spec, new)
			return was != is || is && !sameGateway
		}) {
			mark(key{kind: ofGroup, digest: g.Digest})
		}
	}
	if sameLabels {
		return
	}
	name := nameOf(old, new, func(n *tables.Node) string { return n.Name })
	if name == r.LocalNode.Name {
		for p := range r.EgressPolicies.All(in) {
			if serves(p, old) != serves(p, new) {
				r.markSources(in, p, mark)
			}
		}
	}
	if !r.selectsOneOf(in, old, new) {
		return
	}
	for e := range r.Endpoints.All(in) {
		if e.Node == name {
			r.markEndpoint(in, e, mark)
		}
	}
	if name == r.LocalNode.Name {
		for e := range r.Locals.All(in) {
			mark(addrKey(e.Addr))
		}
	}
}

// selectsOneOf reports whether an egress policy selects only one of two versions of a node.
func (r *rule) selectsOneOf(in statedb.ReadTxn, old, new *tables.Node) bool {
	for p := range r.EgressPolicies.List(in, tables.EgressPoliciesOfNodes(true)) {
		for _, m := range matchersOf(slices.Clone(p.Selectors)) {
			if m.MatchesNode(old) != m.MatchesNode(new) {
				return true
			}
		}
	}
	return false
}

// isCandidate reports whether a node may be elected for an item of a list of gateways.
func isCandidate(spec tables.GatewaySpec, n *tables.Node) bool {
	if n == nil || spec.Error != "" {
		return false
	}
	selector, err := labels.Parse(spec.Nodes)
	return err == nil && selector.Matches(n.Labels)
}

// serves reports whether a node may be a gateway of a policy.
func serves(p *tables.EgressPolicy, n *tables.Node) bool {
	return slices.ContainsFunc(p.Gateways, func(g tables.GatewaySpec) bool {
		return isCandidate(g, n)
	})
}

// markNetworkPolicy marks the pods of this node that a policy selects or selected, or that may wait
// for their namespace because of it.
func (r *rule) markNetworkPolicy(
	in statedb.ReadTxn, old, new *tables.NetworkPolicy, mark func(key),
) {
	if r.Pods.NumObjects(in) > 0 { // else all pods of this node wait anyway
		for addr := range r.localsOf(in, subjectsOf(old, new)) {
			mark(addrKey(addr))
		}
	}
	mark(key{kind: ofPolicy, policy: nameOf(old, new, (*tables.NetworkPolicy).ID)})
}

// subjectsOf returns the selectors of the pods that some policies select.
func subjectsOf(policies ...*tables.NetworkPolicy) []*tables.PodMatcher {
	var subjects []tables.EgressSelector
	for _, p := range policies {
		if p != nil {
			for _, rule := range p.Rules {
				subjects = append(subjects, rule.Subject)
			}
		}
	}
	return matchersOf(subjects)
}

// localsOf yields the addresses of pods of this node that some selectors select or may select.
func (r *rule) localsOf(in statedb.ReadTxn, selectors []*tables.PodMatcher) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		selected := r.selecting(in, selectors)
		for e := range r.Locals.All(in) {
			if e.LabelSet != nil && selected(e.LabelSet) && !yield(e.Addr) {
				return
			}
		}
	}
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

// selecting returns a function that reports whether one of some selectors selects a label set, or
// would if its namespace were known. It evaluates each label set once.
func (r *rule) selecting(
	in statedb.ReadTxn, selectors []*tables.PodMatcher,
) func(*tables.LabelSet) bool {
	looked := map[tables.LabelSetID]bool{}
	return func(set *tables.LabelSet) bool {
		selected, known := looked[set.ID]
		if !known {
			namespace, _, _ := r.Namespaces.Get(in, tables.NamespaceByName(set.Namespace))
			selected = slices.ContainsFunc(selectors, func(m *tables.PodMatcher) bool {
				return m.Matches(set, namespace) || namespace == nil && m.MayMatch(set)
			})
			looked[set.ID] = selected
		}
		return selected
	}
}

// markEgressPolicy marks the pods that a policy selects or selected.
func (r *rule) markEgressPolicy(in statedb.ReadTxn, old, new *tables.EgressPolicy, mark func(key)) {
	for _, p := range []*tables.EgressPolicy{old, new} {
		if p != nil {
			mark(key{kind: ofGroup, digest: tables.GroupDigest(p.Gateways)})
			r.markSources(in, p, mark)
		}
	}
	name := nameOf(old, new, func(p *tables.EgressPolicy) string { return p.Name })
	mark(key{kind: ofPolicy, policy: tables.EgressPolicyID(name)})
}

// markFirst marks the egress policies that exist at first, and their groups. Later ones are marked
// after their pods.
func markFirst(_ statedb.ReadTxn, old, new *tables.EgressPolicy, mark func(key)) {
	if old == nil {
		mark(key{kind: ofGroup, digest: tables.GroupDigest(new.Gateways)})
		mark(key{kind: ofPolicy, policy: tables.EgressPolicyID(new.Name)})
	}
}

// markSources marks the pods that an egress policy selects or may select: those of this node, and
// others if this node is or may be their gateway. It may select pods by labels of a namespace that
// is not known yet.
func (r *rule) markSources(in statedb.ReadTxn, p *tables.EgressPolicy, mark func(key)) {
	matchers := matchersOf(slices.Clone(p.Selectors))
	for addr := range r.localsOf(in, matchers) {
		mark(addrKey(addr))
	}
	node, _, _ := r.Nodes.Get(in, tables.NodeByName(r.LocalNode.Name))
	served := serves(p, node)
	selected := r.selecting(in, matchers)
	for e := range r.Endpoints.All(in) {
		if e.Node == r.LocalNode.Name || !selected(e.LabelSet) {
			continue
		}
		_, _, known := r.Namespaces.Get(in, tables.NamespaceByName(e.Namespace))
		for _, addr := range e.Addrs {
			if served || !known || r.hasPod(in, addr) {
				mark(addrKey(addr))
			}
		}
	}
}

// markUndesired marks the undesired objects if there are some: the kernel may no longer refer to
// them.
func (r *rule) markUndesired(in statedb.ReadTxn, mark func(key)) {
	_, _, subjects := r.Subjects.Get(in, tables.SubjectsUndesired(true))
	_, _, rulesets := r.Rulesets.Get(in, tables.RulesetsUndesired(true))
	_, _, egress := r.EgressRulesets.Get(in, tables.EgressRulesetsUndesired(true))
	_, _, groups := r.Groups.Get(in, tables.EgressGroupsUndesired(true))
	if subjects || rulesets || egress || groups {
		mark(key{kind: ofUndesired})
	}
}
