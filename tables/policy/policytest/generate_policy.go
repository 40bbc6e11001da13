// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"strings"
)

// Policy generates a network policy of one of the three kinds.
func (g *Generator) Policy() string {
	switch g.IntN(5) {
	case 0, 1:
		return g.kubernetesPolicy()
	case 2:
		return g.ciliumPolicy("CiliumClusterwideNetworkPolicy", fmt.Sprintf("name: all-%d", g.IntN(2)))
	}
	return g.ciliumPolicy(
		"CiliumNetworkPolicy", fmt.Sprintf("name: cilium-%d, namespace: ns-%d", g.IntN(2), g.IntN(3)),
	)
}

func (g *Generator) kubernetesPolicy() string {
	item := func(peers string) func() string {
		return func() string {
			var parts []string
			if g.IntN(6) > 0 {
				parts = append(parts, peers+": ["+g.some(1, g.kubernetesPeer)+"]")
			}
			if g.IntN(2) == 0 {
				parts = append(parts, "ports: ["+g.some(1, g.kubernetesPort)+"]")
			}
			return "{" + strings.Join(parts, ", ") + "}"
		}
	}
	var spec []string
	types := g.pick("Ingress", "Egress", "Ingress, Egress", "Ingress, Egress")
	if strings.Contains(types, "Ingress") {
		spec = append(spec, "ingress: ["+g.some(0, item("from"))+"]")
	}
	if strings.Contains(types, "Egress") {
		spec = append(spec, "egress: ["+g.some(0, item("to"))+"]")
	}
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: policy-%d, namespace: ns-%d}
spec: {podSelector: %s, policyTypes: [%s], %s}
`, g.IntN(2), g.IntN(3), g.selector(), types, strings.Join(spec, ", "))
}

func (g *Generator) selector() string {
	return g.pick("{}", "{matchLabels: {app: web}}", "{matchLabels: {tier: front}}",
		"{matchLabels: {app: db, tier: back}}",
		"{matchExpressions: [{key: app, operator: In, values: [db, api]}]}",
		"{matchExpressions: [{key: app, operator: NotIn, values: [web]}]}",
		"{matchExpressions: [{key: tier, operator: Exists}]}")
}

func (g *Generator) kubernetesPeer() string {
	switch g.IntN(4) {
	case 0:
		return "{podSelector: " + g.selector() + "}"
	case 1:
		return "{namespaceSelector: " + g.pick(
			"{}", "{matchLabels: {team: blue}}",
			"{matchExpressions: [{key: team, operator: NotIn, values: [blue]}]}",
			"{matchLabels: {kubernetes.io/metadata.name: ns-1}}",
		) + "}"
	case 2:
		return "{namespaceSelector: {matchLabels: {team: " + g.pick("blue", "red") + "}}, podSelector: " +
			g.selector() + "}"
	}
	return "{ipBlock: {" + g.prefixAndExcept() + "}}"
}

func (g *Generator) kubernetesPort() string {
	return g.pick("{port: 80}", "{port: 80, protocol: TCP}", "{port: 53, protocol: UDP}",
		"{port: 8000, endPort: 8085}", "{port: http}", "{port: dns, protocol: UDP}",
		"{port: 1, endPort: 1023}", "{protocol: UDP}", "{port: 9999, endPort: 10001, protocol: SCTP}", "{}")
}

func (g *Generator) ciliumPolicy(kind, metadata string) string {
	rule := func() string {
		parts := []string{"endpointSelector: " + g.ciliumSelector()}
		for _, direction := range []struct{ name, prefix string }{{"ingress", "from"}, {"egress", "to"}} {
			if g.IntN(3) > 0 {
				parts = append(parts, direction.name+": ["+g.some(
					1, func() string { return g.ciliumItem(direction.prefix, kind) },
				)+"]")
			}
			if g.IntN(3) == 0 {
				parts = append(parts, direction.name+"Deny: ["+g.some(
					1, func() string { return g.ciliumItem(direction.prefix, kind) },
				)+"]")
			}
		}
		if len(parts) == 1 {
			parts = append(parts, "ingress: [{}]")
		}
		if g.IntN(4) == 0 {
			parts = append(parts, "enableDefaultDeny: "+g.pick(
				"{ingress: false}", "{egress: false}", "{ingress: false, egress: false}",
				"{ingress: true, egress: true}",
			))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	body := "spec: " + rule()
	if g.IntN(4) == 0 {
		body = "specs: [" + rule() + ", " + rule() + "]"
	}
	return fmt.Sprintf(`
apiVersion: cilium.io/v2
kind: %s
metadata: {%s}
%s
`, kind, metadata, body)
}

func (g *Generator) ciliumSelector() string {
	return g.pick("{}", "{matchLabels: {app: web}}", "{matchLabels: {\"k8s:tier\": front}}",
		"{matchLabels: {\"any:app\": db}}",
		"{matchExpressions: [{key: app, operator: In, values: [db, api]}]}",
		"{matchLabels: {\"k8s:io.cilium.k8s.policy.serviceaccount\": robot}}",
		"{matchLabels: {app: api}, matchExpressions: [{key: io.cilium.k8s.namespace.labels.team, operator: NotIn, values: [blue]}]}")
}

func (g *Generator) ciliumPeers(prefix, kind string) string {
	item := g.IntN(9)
	if item == 8 && (prefix == "from") {
		item = 0
	}
	switch item {
	case 0, 1:
		return prefix + "Endpoints: [" + g.some(0, func() string {
			return g.pick(g.ciliumSelector(), g.ciliumSelector(),
				"{matchLabels: {\"k8s:io.kubernetes.pod.namespace\": ns-1}}",
				"{matchLabels: {\"k8s:io.cilium.k8s.namespace.labels.team\": blue, app: web}}",
				"{matchExpressions: [{key: io.kubernetes.pod.namespace, operator: Exists}]}",
				"{matchLabels: {\"reserved:host\": \"\"}}")
		}) + "]"
	case 2:
		return prefix + "CIDR: [" + g.some(1, g.prefix) + "]"
	case 3:
		return prefix + "CIDRSet: [" + g.some(
			1, func() string { return "{" + g.prefixAndExcept() + "}" },
		) + "]"
	case 4:
		return prefix + "CIDRSet: [" + g.pick("{cidrGroupRef: group-0}", "{cidrGroupRef: group-1}",
			"{cidrGroupRef: group-0, except: [203.0.113.0/25]}",
			"{cidrGroupSelector: {matchLabels: {site: a}}}", "{cidrGroupSelector: {}}") + "]"
	case 5, 6:
		return prefix + "Entities: [" + g.some(1, func() string {
			return g.pick(
				"all", "world", "world-ipv4", "world-ipv6", "cluster", "host", "remote-node", "kube-apiserver",
				"none", "health", "unmanaged",
			)
		}) + "]"
	case 7:
		return prefix + "Nodes: [" + g.pick(
			"{}", "{matchLabels: {zone: a}}", "{matchLabels: {zone: b, disk: ssd}}",
		) + "]"
	}
	namespace := ""
	if kind == "CiliumClusterwideNetworkPolicy" || g.IntN(2) == 0 {
		namespace = ", namespace: " + g.pick("ns-0", "ns-1")
	}
	return prefix + "Services: [" + g.pick("{k8sService: {serviceName: plain"+namespace+"}}",
		"{k8sService: {serviceName: pods-0"+namespace+"}}",
		"{k8sService: {serviceName: other"+namespace+"}}",
		"{k8sServiceSelector: {selector: {matchLabels: {use: shop}}"+namespace+"}}", "{k8sServiceSelector: {selector: {matchLabels: {use: bank}}}}") + "]"
}

func (g *Generator) ciliumItem(prefix, kind string) string {
	var parts []string
	if g.IntN(6) > 0 {
		parts = append(parts, g.ciliumPeers(prefix, kind))
	}
	switch g.IntN(5) {
	case 0, 1:
		parts = append(parts, "toPorts: [{ports: ["+g.some(1, func() string {
			return g.pick("{port: \"80\", protocol: TCP}", "{port: \"80\"}", "{port: \"53\", protocol: UDP}",
				"{port: \"8000\", endPort: 8085, protocol: TCP}",
				"{port: http, protocol: TCP}", "{port: dns}", "{port: \"0\", protocol: TCP}", "{port: \"0\"}",
				"{port: \"1024\", endPort: 65535}",
				"{port: \"79\", endPort: 81, protocol: ANY}", "{protocol: AH}", "{protocol: GRE}", "{port: \"132\", protocol: SCTP}")
		})+"]}]")
	case 2:
		parts = append(parts, "icmps: [{fields: ["+g.some(1, func() string {
			return g.pick(
				"{type: 8}", "{family: IPv4, type: EchoRequest}", "{family: IPv6, type: 128}",
				"{family: IPv6, type: EchoRequest}", "{family: IPv4, type: 0}", "{family: IPv4, type: 3}",
			)
		})+"]}]")
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
