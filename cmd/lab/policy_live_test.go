// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
)

// A change of what policies say, or of what their selectors select, holds for live
// connections and for new ones.
func TestPolicyChanges(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{})
	for _, test := range []struct {
		name string
		run  func(*policyTest)
	}{
		{"revoke-ingress", (*policyTest).revokeIngress}, {"revoke-egress", (*policyTest).revokeEgress},
		{"deny-added", (*policyTest).denyAdded}, {"policy-changed", (*policyTest).policyChanged},
		{"pod-relabeled", (*policyTest).podRelabeled},
		{"namespace-relabeled", (*policyTest).namespaceRelabeled},
		{"new-pods", (*policyTest).newPods}, {"related-errors", (*policyTest).relatedErrors},
		{"path-mtu", (*policyTest).relatedTooBig}, {"host-from-outside", (*policyTest).hostFromOutside},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(p.on(t)) })
	}
	p.check(openChecks)
}

// closedAround has both sides of what the tests change closed in the direction that is not
// asked for: only replies go there.
const closedAround = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: client-hears-replies-only, namespace: shop}
spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server-says-replies-only, namespace: shop}
spec: {podSelector: {matchLabels: {app: server}}, policyTypes: [Egress]}
`

// ingressPolicy lets clients in to a port of the servers.
func ingressPolicy(name string, port int) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: %d, protocol: TCP}, {port: %[2]d, protocol: UDP}]
`, name, port)
}

// egressPolicy lets clients talk to a port of the servers.
func egressPolicy(name string, port int) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: server}}}]
    ports: [{port: %d, protocol: TCP}, {port: %[2]d, protocol: UDP}]
`, name, port)
}

func (p *policyTest) revokeIngress() { p.revoke(ingressPolicy, isDropped) }
func (p *policyTest) revokeEgress()  { p.revoke(egressPolicy, cannotSend) }

// revoke removes an allow and adds it again, with connections of each kind, on a node
// and between two. Those that another policy allows do not notice.
func (p *policyTest) revoke(policy func(string, int) string, want verdict) {
	p.enforce(closedAround)
	p.enforce(policy("stays", 81))
	allow := p.enforce(policy("allow", 80))

	var concerned, downloads, others []*talk
	for _, server := range []string{"near", "far"} {
		for _, network := range []string{"tcp", "udp"} {
			for _, c := range p.callsOf("client " + server + " " + network + "/80") {
				concerned = append(concerned, p.begin(c))
			}
		}
		downloads = append(downloads, p.download(p.callOf("client "+server+" tcp4/80")))
		others = append(others, p.begin(p.callOf("client "+server+" tcp6/81")))
	}
	beginning := p.drops.position()
	for _, concerned := range [][]*talk{append(downloads, concerned...), concerned} {
		position, since := p.drops.position(), time.Now()
		require.NoError(p.t, p.Delete(allow...))
		latest := time.Duration(0)
		for _, k := range concerned {
			first := p.cut(k, position, want)
			latest = max(latest, first.Time.Sub(since))
		}
		p.t.Logf("all %d connections are cut %s after the policy is gone", len(concerned), latest)

		since = time.Now()
		require.NoError(p.t, p.Apply(allow...))
		for _, k := range concerned {
			p.goesOn(k)
		}
		p.t.Logf("all go on %s after it is back", time.Since(since))
		for _, k := range downloads { // TCP has learned from the pause to be patient
			k.close()
		}
		for _, k := range others {
			p.goesOn(k)
		}
	}
	for _, k := range others {
		require.Empty(p.t, texts(p.drops.since(beginning, k.dropped)), "%s was allowed all the time", k)
	}
}

// A deny that is added cuts what is allowed, and tells its rule.
func (p *policyTest) denyAdded() {
	p.enforce(ingressPolicy("allow", 80))
	talks := []*talk{p.begin(p.callOf("client near tcp4/80")), p.begin(p.callOf("client far tcp6/80"))}
	position := p.drops.position()
	deny := p.enforce(`
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: no-client, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: server}}
  ingressDeny:
  - fromEndpoints: [{matchLabels: {team: blue}}, {matchLabels: {app: client}}]
`)
	for _, k := range talks {
		p.cut(k, position, verdict{direction: bpf.DirectionIngress, reason: reasonRule})
		p.eventually("drops of "+k.String()+" name the rule", func() error {
			drops := p.drops.since(position, k.asked)
			if last := drops[len(drops)-1]; !slices.Equal(last.Rules, []string{"CiliumNetworkPolicy/shop/no-client spec.ingressDeny[0]"}) {
				return errors.New(last.text)
			}
			return nil
		})
	}
	p.withdraw(deny...)
	for _, k := range talks {
		p.goesOn(k)
	}
}

// A policy that is changed in place.
func (p *policyTest) policyChanged() {
	p.enforce(ingressPolicy("web", 80))
	p.check("client near tcp/80 allowed\nclient near tcp/81 ingress")
	for _, port := range []int{81, 80, 81} {
		require.NoError(p.t, p.ApplyYAML(ingressPolicy("web", port)))
		for _, server := range []string{"near", "far"} {
			p.becomes(fmt.Sprintf("client %s tcp/%d", server, port), isAllowed)
			p.becomes(fmt.Sprintf("client %s tcp/%d", server, 161-port), isDropped)
		}
	}
}

// A pod gets other labels: as a peer, and as a subject.
func (p *policyTest) podRelabeled() {
	p.enforce(ingressPolicy("web", 80))
	pods := p.addPods(
		PodSpec{Node: p.Nodes[0], Namespace: "shop", Name: "chameleon", Labels: map[string]string{"app": "client"}},
		PodSpec{Node: p.Nodes[1], Namespace: "shop", Name: "turncoat", Labels: map[string]string{"app": "server"}},
	)
	chameleon, turncoat := pods[0], pods[1]
	p.t.Cleanup(func() { p.removePods(pods...) })
	p.becomes("chameleon near tcp/80", isAllowed)
	p.becomes("chameleon turncoat tcp/80", isAllowed)
	p.becomes("other turncoat tcp/80", isDropped)
	talks := []*talk{
		p.begin(p.callOf("chameleon near tcp4/80")), p.begin(p.callOf("chameleon far tcp6/80")), p.begin(p.callOf("chameleon turncoat udp4/80")),
	}

	position := p.drops.position()
	p.relabel(chameleon, map[string]string{"app": "other"})
	for _, k := range talks {
		p.cut(k, position, isDropped)
	}
	for _, server := range []string{"near", "far", "turncoat"} {
		p.becomes("chameleon "+server+" tcp/80", isDropped)
	}
	p.relabel(turncoat, map[string]string{"app": "other"})
	p.becomes("chameleon turncoat tcp/80", isAllowed)
	p.becomes("other turncoat udp/81", isAllowed)
	p.goesOn(talks[2])
	p.relabel(chameleon, map[string]string{"app": "client", "color": "green"})
	for _, k := range talks {
		p.goesOn(k)
	}
	p.relabel(turncoat, map[string]string{"app": "server"})
	p.becomes("other turncoat udp/81", isDropped)
	p.becomes("chameleon turncoat tcp/80", isAllowed)
}

func (p *policyTest) removePods(pods ...*Pod) {
	p.t.Helper()
	for _, pod := range pods {
		require.NoError(p.t, p.RemovePod(pod))
		delete(p.names, pod.Spec.Name)
	}
}

// A namespace gets other labels, by which a policy selects its pods.
func (p *policyTest) namespaceRelabeled() {
	p.enforce(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: teams, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {team: green}}}]
`)
	team := func(name string) {
		require.NoError(p.t, p.ApplyYAML(`
apiVersion: v1
kind: Namespace
metadata: {name: garden, labels: {team: `+name+`}}
`))
	}
	p.check("stranger near tcp/80 allowed\nstranger far udp/80 allowed\nclient near tcp/80 ingress")
	k := p.begin(p.callOf("stranger near tcp6/80"))
	position := p.drops.position()
	team("blue")
	p.cut(k, position, isDropped)
	p.becomes("stranger near tcp/80", isDropped)
	p.becomes("stranger far udp/80", isDropped)
	team("green")
	p.goesOn(k)
	p.becomes("stranger near tcp/80", isAllowed)
	p.becomes("stranger far udp/80", isAllowed)
}

// New pods whose labels are known are under the policies at once, and cost no
// further verdict.
func (p *policyTest) newPods() {
	p.enforce(ingressPolicy("web", 80))
	before := p.entries()
	pods := p.addPods(
		PodSpec{Node: p.Nodes[1], Namespace: "shop", Name: "client-2", Labels: map[string]string{"app": "client"}},
		PodSpec{Node: p.Nodes[0], Namespace: "shop", Name: "other-2", Labels: map[string]string{"app": "other"}},
		PodSpec{Node: p.Nodes[1], Namespace: "shop", Name: "server-2", Labels: map[string]string{"app": "server"}, Ports: map[string]uint16{"web": 81}},
	)
	p.t.Cleanup(func() { p.removePods(pods...) })
	p.inForce(nil)
	p.check(`
client-2 near     tcp/80 allowed
client-2 far      udp/80 allowed
client-2 server-2 tcp/80 allowed
client   server-2 tcp/80 allowed
client   server-2 tcp/81 ingress
other-2  near     tcp/80 ingress
other-2  server-2 tcp/80 ingress
other    server-2 udp/80 ingress
`)
	require.Equal(p.t, before, p.entries())
}

// entries are the entries of sluice_policy that are desired.
func (p *policyTest) entries() (all []string) {
	p.t.Helper()
	for _, n := range p.Nodes {
		rows, err := Rows[struct {
			Ruleset, Class, Set uint32
			Direction           any
		}](p.ctx, n.Agent, "policy-entries")
		require.NoError(p.t, err)
		for _, r := range rows {
			all = append(all, fmt.Sprint(n.Name, r))
		}
	}
	return all
}

// Who comes from outside is the world, and not the host, which always reaches its
// pods: neither is a connection that the node translates to its own address.
func (p *policyTest) hostFromOutside() {
	const kept, hidden = 30080, 30081
	n1, near := p.Nodes[0], p.names["near"]
	net4, net6 := p.worldNetworks()
	p.names["visitor"] = place{p.World.Namespace, hostOf(net4, routerHost), hostOf(net6, routerHost), nil, nil}
	p.names["node-port"] = place{n1.Namespace, n1.OutsideIPv4, n1.OutsideIPv6, n1, &target{near, 80}}
	var ports []translation
	for _, v6 := range []bool{false, true} {
		for port, masquerade := range map[uint16]bool{kept: false, hidden: true} {
			from := netip.AddrPortFrom(p.names["node-port"].addr(v6), port)
			ports = append(ports, translation{from, netip.AddrPortFrom(near.addr(v6), 80), masquerade})
		}
	}
	require.NoError(p.t, n1.translate(ports...))
	p.t.Cleanup(func() { require.NoError(p.t, n1.translate()) })
	open := fmt.Sprintf("visitor node-port tcp/%d allowed\n", kept)
	openHidden := fmt.Sprintf("visitor node-port tcp/%d allowed\n", hidden)
	p.check(open + openHidden)

	rule := func(entity string) []Object {
		return p.enforce(`
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: from-` + entity + `, namespace: shop}
spec: {endpointSelector: {matchLabels: {app: server}}, ingress: [{fromEntities: [` + entity + `]}]}
`)
	}
	for entity, calls := range map[string]string{
		"none":  "node-1 near tcp/80 allowed",
		"world": "node-1 near tcp/80 allowed\n" + open,
		"host":  "node-1 near tcp/80 allowed\n" + openHidden,
	} {
		objects := rule(entity)
		p.check(calls)
		if entity != "world" {
			p.check(fmt.Sprintf("visitor node-port tcp/%d ingress", kept))
		}
		if entity != "host" {
			p.hiddenIsDropped(hidden, near)
		}
		p.withdraw(objects...)
	}
}

// hiddenIsDropped asserts that the policies of a pod drop what comes to it in the
// name of its node.
func (p *policyTest) hiddenIsDropped(port uint16, near place) {
	p.t.Helper()
	for _, c := range p.callsOf(fmt.Sprintf("visitor node-port tcp/%d", port)) {
		ctx, cancel := context.WithTimeout(p.ctx, patience)
		position := p.drops.position()
		tried := make(chan error, 1)
		go func() { tried <- c.try(ctx) }()
		e, err := p.drops.next(ctx, position, func(e dropEvent) bool { return e.Destination.Addr == near.addr(c.v6) })
		cancel()
		require.Error(p.t, <-tried, "%s is answered", c)
		require.NoError(p.t, err, "%s", c)
		require.Equal(p.t, reasonDefault, e.Reason, e.text)
		require.Equal(p.t, p.Nodes[0].Name, e.Source.Node, "the source is to be the node's: %s", e.text)
	}
}
