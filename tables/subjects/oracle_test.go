// SPDX-License-Identifier: Apache-2.0

package subjects

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
)

// oracle computes from the inputs what the outputs must say, without numbers, in the simplest
// way: it shares nothing with the rule but the types of rows.
type oracle struct {
	*harness
	txn statedb.ReadTxn
}

// holds evaluates a label selector without the requirements of some keys, and reports whether
// there were any.
func holds(
	text string, lookup func(key string) (string, bool), leaveOut func(string) bool,
) (is, left bool) {
	is = true
	for requirement := range strings.SplitSeq(text, ",") {
		key, value, negative, exists := requirement, "", false, true
		switch {
		case requirement == "":
			continue
		case strings.HasPrefix(requirement, "!"):
			key, negative = requirement[1:], true
		case strings.Contains(requirement, "!="):
			key, value, _ = strings.Cut(requirement, "!=")
			negative, exists = true, false
		default:
			key, value, _ = strings.Cut(requirement, "=")
			exists = false
		}
		if leaveOut(key) {
			left = true
			continue
		}
		has, found := lookup(key)
		if (found && (exists || has == value)) == negative {
			is = false
		}
	}
	return is, left
}

const ofNamespace = "io.cilium.k8s.namespace.labels."

// selects reports whether a selector selects a label set, and whether it depends on labels of
// a namespace that is not known.
func (o *oracle) selects(s tables.EgressSelector, set *tables.LabelSet) (is, unknown bool) {
	namespace, _, known := o.Namespaces.Get(o.txn, tables.NamespaceByName(set.Namespace))
	inNamespace := func(key string) (value string, found bool) {
		if key == "kubernetes.io/metadata.name" {
			return set.Namespace, true
		}
		if known {
			value, found = namespace.Labels[key]
		}
		return value, found
	}
	inPod := func(key string) (string, bool) {
		switch key {
		case "io.kubernetes.pod.namespace":
			return set.Namespace, true
		case "io.cilium.k8s.policy.serviceaccount":
			return set.ServiceAccount, set.ServiceAccount != ""
		}
		if label, is := strings.CutPrefix(key, ofNamespace); is {
			return inNamespace(label)
		}
		for _, label := range set.Labels {
			if label.Key == key {
				return label.Value, true
			}
		}
		return "", false
	}
	byPod, left := holds(s.Pods, inPod, func(key string) bool {
		return !known && strings.HasPrefix(key, ofNamespace)
	})
	byNamespace, left2 := holds(s.Namespaces, inNamespace, func(key string) bool {
		return !known && key != "kubernetes.io/metadata.name"
	})
	if left || left2 {
		return false, byPod && byNamespace
	}
	return byPod && byNamespace, false
}

func (o *oracle) selectsNode(text, name string) bool {
	if text == "" {
		return true
	}
	n, _, found := o.Nodes.Get(o.txn, tables.NodeByName(name))
	return found && nodeHas(text, n)
}

func nodeHas(text string, n *tables.Node) bool {
	is, _ := holds(text, func(key string) (string, bool) { v, has := n.Labels[key]; return v, has },
		func(string) bool { return false })
	return is
}

// applies returns the egress policies that select pods, in order, with the selector.
func (o *oracle) applies(set *tables.LabelSet, node string) (found []applying, unknown bool) {
	for _, p := range all(o.txn, o.EgressPolicies) {
		var texts []string
		for _, s := range p.Selectors {
			is, may := o.selects(s, set)
			unknown = unknown || may
			if is && o.selectsNode(s.Nodes, node) {
				texts = append(texts, s.String())
			}
		}
		if len(texts) > 0 {
			found = append(found, applying{policy: p, selector: slices.Min(texts)})
		}
	}
	slices.SortFunc(found, func(a, b applying) int {
		return cmp.Or(a.policy.Created.Compare(b.policy.Created),
			cmp.Compare(a.policy.Name, b.policy.Name))
	})
	return found, unknown
}

func (o *oracle) owner(addr netip.Addr) (owner *tables.Endpoint) {
	for _, e := range all(o.txn, o.Endpoints) {
		if slices.Contains(e.Addrs, addr) && (owner == nil || e.Created.After(owner.Created) ||
			e.Created.Equal(owner.Created) && e.Name.String() < owner.Name.String()) {
			owner = e
		}
	}
	return owner
}

// gatewayOf reports whether this node may be a gateway of a policy.
func (o *oracle) gatewayOf(p *tables.EgressPolicy) bool {
	n, _, found := o.Nodes.Get(o.txn, tables.NodeByName(here))
	return found && slices.ContainsFunc(p.Gateways, func(g tables.GatewaySpec) bool {
		return g.Error == "" && nodeHas(g.Nodes, n)
	})
}

// known returns the label set that an address has here, and on which node, nil if that is not
// known, or it is none of a pod that concerns this node.
func (o *oracle) known(addr netip.Addr) (set *tables.LabelSet, node string) {
	if e, _, found := o.Locals.Get(o.txn, tables.LocalEndpointByAddr(addr)); found {
		if e.LabelSet == nil || o.unknown(e.LabelSet) {
			return nil, ""
		}
		return e.LabelSet, here
	}
	e := o.owner(addr)
	if e == nil || e.Node == here {
		return nil, ""
	}
	policies, unknown := o.applies(e.LabelSet, e.Node)
	for _, a := range policies {
		if !unknown && o.gatewayOf(a.policy) {
			return e.LabelSet, e.Node
		}
	}
	return nil, ""
}

// unknown reports whether it is not known what policies say of a label set of this node.
func (o *oracle) unknown(set *tables.LabelSet) bool {
	if _, unknown := o.applies(set, here); unknown {
		return true
	}
	for _, p := range all(o.txn, o.NetworkPolicies) {
		for _, r := range p.Rules {
			if _, may := o.selects(r.Subject, set); may && o.Enforcement != tables.EnforcementNever {
				return true
			}
		}
	}
	return false
}

// pods renders what each address is, and what policies say of it.
func (o *oracle) pods() map[netip.Addr]string {
	pods := map[netip.Addr]string{}
	for _, e := range all(o.txn, o.Locals) {
		said := "held"
		if set, node := o.known(e.Addr); set != nil {
			said = o.ruleset(set) + o.egressRuleset(set, node)
		}
		pods[e.Addr] = fmt.Sprintf("%s local %d %s\n%s", e.Endpoint, e.IfIndex, e.MAC, said)
	}
	for _, e := range all(o.txn, o.Endpoints) {
		for _, addr := range e.Addrs {
			if set, node := o.known(addr); set != nil && node != here {
				said := o.egressRuleset(set, node)
				pods[addr] = fmt.Sprintf("%s elsewhere\n%s", o.owner(addr).Name, said)
			}
		}
	}
	return pods
}

// ruleset renders everything that network policies say of a label set.
func (o *oracle) ruleset(set *tables.LabelSet) string {
	var lines []string
	policies := all(o.txn, o.NetworkPolicies)
	if o.Enforcement == tables.EnforcementNever {
		policies = nil
	}
	slices.SortFunc(policies, func(a, b *tables.NetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name.Name, b.Name.Name))
	})
	for _, p := range policies {
		for _, r := range p.Rules {
			if is, _ := o.selects(r.Subject, set); !is {
				continue
			}
			lines = append(lines, o.direction(p, "egress", r.Field, r.Egress, nil)...)
			lines = append(lines, o.direction(p, "ingress", r.Field, r.Ingress, set)...)
		}
	}
	if o.Enforcement == tables.EnforcementAlways {
		return "always deny\n" + strings.Join(lines, "")
	}
	if len(lines) == 0 {
		return "empty\n"
	}
	return strings.Join(lines, "")
}

// direction renders the items of a direction; in ingress the names of ports are those of a
// label set.
func (o *oracle) direction(
	p *tables.NetworkPolicy, name, field string, d tables.PolicyDirection,
	set *tables.LabelSet,
) (lines []string) {
	if d.DefaultDeny {
		lines = append(lines, p.ID().String()+" "+field+"."+name+" default deny\n")
	}
	for _, t := range d.Traffic {
		any := t.AnyPeer
		var peers []string
		for _, peer := range t.Peers {
			switch {
			case peer.Kind == tables.PeerEntity && peer.Entity == tables.EntityAll:
				any = true
			case peer.Kind == tables.PeerEntity &&
				(peer.Entity == tables.EntityNone || peer.Entity == tables.EntityInit):
			default:
				peers = append(peers, peer.String())
			}
		}
		if any {
			peers = []string{"any"}
		}
		if len(peers) == 0 {
			continue
		}
		var ports []string
		for _, port := range t.Ports {
			if port.Name == "" || set == nil {
				ports = append(ports, portText(port))
				continue
			}
			for _, n := range set.NamedPorts {
				if n.Name == port.Name && n.Protocol == port.Protocol {
					number := tables.PolicyPort{Protocol: n.Protocol, First: n.Port, Last: n.Port}
					ports = append(ports, portText(number))
				}
			}
		}
		none := len(t.Ports) > 0 && len(ports) == 0
		if none && len(lines) > 0 {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s deny=%t none=%t %v %v\n",
			p.ID(), t.Field, t.Deny, none, sorted(peers), ports))
	}
	return lines
}

func portText(p tables.PolicyPort) string {
	return fmt.Sprintf("%q %d %d %d", p.Name, p.Protocol, p.First, p.Last)
}

func sorted(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// egressRuleset renders where traffic goes by destination.
func (o *oracle) egressRuleset(set *tables.LabelSet, node string) string {
	policies, _ := o.applies(set, node)
	var lines, names []string
	var prefixes []netip.Prefix
	for _, a := range policies {
		names = append(names, a.policy.Name)
		prefixes = append(prefixes, slices.Concat(a.policy.Destinations, a.policy.Excluded)...)
	}
	for _, prefix := range prefixes {
		best, group, by, excludedBy := -1, "excluded", applying{}, applying{}
		var overrides []string
		for _, a := range policies {
			d, x := covering(a.policy.Destinations, prefix), covering(a.policy.Excluded, prefix)
			switch {
			case d > x && d > best:
				best, by, group = d, a, fmt.Sprint(a.policy.Gateways)
			case x >= d && x >= 0 && excludedBy.policy == nil:
				excludedBy = a
			}
		}
		if by.policy == nil {
			by = excludedBy
		}
		for _, a := range policies {
			d, x := covering(a.policy.Destinations, prefix), covering(a.policy.Excluded, prefix)
			if a.policy != by.policy && d > x && d == prefix.Bits() {
				overrides = append(overrides, a.policy.Name)
			}
		}
		lines = append(lines, fmt.Sprintf("%s -> %s %s %s %v\n",
			prefix, group, by.policy.Name, by.selector, overrides))
	}
	if len(policies) == 0 {
		return ""
	}
	return fmt.Sprintln("egress", names) + strings.Join(sorted(lines), "")
}

func covering(prefixes []netip.Prefix, p netip.Prefix) int {
	bits := -1
	for _, q := range prefixes {
		if q.Overlaps(p) && q.Bits() <= p.Bits() {
			bits = max(bits, q.Bits())
		}
	}
	return bits
}

// election renders the nodes elected for a list of gateways.
func (o *oracle) election(specs []tables.GatewaySpec) string {
	var choices []string
	local := false
	for _, spec := range specs {
		choice := "none"
		for _, n := range all(o.txn, o.Nodes) {
			if spec.Error != "" || !nodeHas(spec.Nodes, n) {
				continue
			}
			local = local || n.Name == here
			if choice == "none" && n.Ready && len(n.InternalIPs) > 0 {
				choice = n.Name + " " + n.InternalIPs[0].String()
			}
		}
		choices = append(choices, choice)
	}
	var users []string
	for _, p := range all(o.txn, o.EgressPolicies) {
		if slices.Equal(p.Gateways, specs) {
			users = append(users, p.Name)
		}
	}
	return fmt.Sprint(choices, local, users)
}
