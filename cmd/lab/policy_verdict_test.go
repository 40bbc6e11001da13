// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"slices"
	"testing"
)

// verdictTest is policies and what packets do under them.
type verdictTest struct{ name, manifests, checks string }

var verdictTests = []verdictTest{
	{"ingress-default-deny", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress]}
`, `
client   near     tcp/80   ingress NetworkPolicy/shop/closed
client   far      udp/80   ingress NetworkPolicy/shop/closed
stranger near     icmp     ingress NetworkPolicy/shop/closed
stranger far      tcp/80   ingress NetworkPolicy/shop/closed
near     stranger tcp/80   allowed
far      stranger icmp     allowed
client   world    udp/8000 allowed
node-1   near     tcp/80   allowed
node-2   near     tcp/80   ingress NetworkPolicy/shop/closed
`},
	{"egress-default-deny", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: mute, namespace: shop}
spec: {podSelector: {}, policyTypes: [Egress]}
`, `
client   near   tcp/80   egress NetworkPolicy/shop/mute
client   far    udp/80   egress NetworkPolicy/shop/mute
client   world  tcp/8000 egress NetworkPolicy/shop/mute
client   world  icmp     egress NetworkPolicy/shop/mute
client   node-1 tcp/80   egress NetworkPolicy/shop/mute
client   node-2 udp/80   egress NetworkPolicy/shop/mute
stranger near   tcp/80   allowed
stranger far    icmp     allowed
node-1   client udp/80   allowed
node-2   client tcp/80   allowed
`},
	{"ingress-from-pods", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 80}]
`, `
client   near   tcp/80 allowed
client   far    tcp/80 allowed
client   near   tcp/81 ingress NetworkPolicy/shop/web
client   far    udp/80 ingress NetworkPolicy/shop/web
client   near   icmp   ingress NetworkPolicy/shop/web
other    near   tcp/80 ingress NetworkPolicy/shop/web
other    far    tcp/80 ingress NetworkPolicy/shop/web
stranger near   tcp/80 ingress NetworkPolicy/shop/web
other    client tcp/80 allowed
`},
	{"ingress-from-namespaces", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: garden, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{namespaceSelector: {matchLabels: {team: green}}, podSelector: {matchLabels: {app: client}}}]
`, `
stranger near tcp/80 allowed
stranger far  udp/81 allowed
client   near tcp/80 ingress
client   far  udp/81 ingress
`},
	{"egress-to-pods", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: calls, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: server}}}]
    ports: [{port: 80}]
`, `
client   near     tcp/80   allowed
client   far      tcp/80   allowed
client   near     tcp/81   egress NetworkPolicy/shop/calls
client   far      udp/80   egress NetworkPolicy/shop/calls
client   other    tcp/80   egress NetworkPolicy/shop/calls
client   stranger tcp/80   egress NetworkPolicy/shop/calls
client   world    tcp/8000 egress NetworkPolicy/shop/calls
other    world    tcp/8000 allowed
stranger other    tcp/80   allowed
near     client   tcp/80   allowed
`},
	{"both-sides", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: calls, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress, Ingress]
  egress:
  - to: [{podSelector: {matchLabels: {app: server}}}]
    ports: [{port: 80, endPort: 81}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  policyTypes: [Egress, Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: 80}]
`, `
client near   tcp/80 allowed
client far    tcp/80 allowed
client near   tcp/81 ingress NetworkPolicy/shop/web
client far    tcp/81 ingress NetworkPolicy/shop/web
client far    udp/80 egress NetworkPolicy/shop/calls
near   client tcp/80 egress NetworkPolicy/shop/web
other  client tcp/80 ingress NetworkPolicy/shop/calls
`},
	{"deny-over-allow", `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: not-other, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: server}}
  ingress:
  - fromEntities: [cluster]
  ingressDeny:
  - fromEndpoints: [{matchLabels: {app: other}}]
    toPorts: [{ports: [{port: "80", protocol: ANY}]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: not-81, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress:
  - toEntities: [all]
  egressDeny:
  - toEndpoints: [{matchLabels: {app: server}}]
    toPorts: [{ports: [{port: "81", protocol: TCP}]}]
`, `
client   near tcp/80   allowed
stranger far  tcp/80   allowed
other    near tcp/81   allowed
other    near tcp/80   ingress-rule CiliumNetworkPolicy/shop/not-other
other    far  udp/80   ingress-rule CiliumNetworkPolicy/shop/not-other
client   near tcp/81   egress-rule CiliumNetworkPolicy/shop/not-81
client   far  tcp/81   egress-rule CiliumNetworkPolicy/shop/not-81
client   far  udp/81   allowed
`},
	{"deny-without-default-deny", `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: not-world, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: client}}
  enableDefaultDeny: {egress: false}
  egressDeny:
  - toCIDRSet: [{cidr: 198.51.100.0/24, except: [198.51.100.64/26]}]
`, `
client near           tcp/80   allowed
client 198.51.100.10  udp/8000 egress-rule CiliumNetworkPolicy/shop/not-world
client 198.51.100.70  tcp/8000 allowed
client 2001:db8:51::9 tcp/8000 allowed
`},
	{"egress-to-cidr", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: partners, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to:
    - ipBlock: {cidr: 198.51.100.0/24, except: [198.51.100.64/26]}
    - ipBlock: {cidr: "2001:db8:51::/64", except: ["2001:db8:51::1:0/112"]}
`, `
client 198.51.100.10     tcp/8000 allowed
client 198.51.100.200    icmp     allowed
client 198.51.100.70     tcp/8000 egress NetworkPolicy/shop/partners
client 198.51.100.127    udp/8000 egress NetworkPolicy/shop/partners
client 2001:db8:51::10   udp/8000 allowed
client 2001:db8:51::1:70 tcp/8000 egress NetworkPolicy/shop/partners
client near              tcp/80   egress NetworkPolicy/shop/partners
`},
	{"ingress-from-cidr-of-pods", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: node-2-pods, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from:
    - ipBlock: {cidr: 10.2.0.0/16, except: [10.2.0.10/32]}
    - ipBlock: {cidr: "fd00:10:2::/64", except: ["fd00:10:2::10/128"]}
`, `
stranger near tcp/80 allowed
far      near udp/80 ingress
client   near tcp/80 ingress
`},
	{"cidr-of-cilium-matches-no-pods", `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: wide, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress:
  - toCIDR: [0.0.0.0/0, "::/0"]
`, `
client world  tcp/8000 allowed
client near   tcp/80   egress
client far    udp/80   egress
client node-2 tcp/80   egress
`},
	{"cidr-group", `
apiVersion: cilium.io/v2
kind: CiliumCIDRGroup
metadata: {name: bank}
spec: {externalCIDRs: [198.51.100.0/26, "2001:db8:51::/112"]}
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: bank, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress:
  - toCIDRSet: [{cidrGroupRef: bank}]
`, `
client 198.51.100.10     tcp/8000 allowed
client 2001:db8:51::10   udp/8000 allowed
client 198.51.100.70     tcp/8000 egress
client 2001:db8:51::1:70 tcp/8000 egress
`},
	{"ingress-to-named-port", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {}}]
    ports: [{port: web}]
`, `
client   near tcp/80 allowed
client   near tcp/81 ingress
client   far  tcp/81 allowed
client   far  tcp/80 ingress
stranger near tcp/80 ingress
`},
	{"egress-to-named-port", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - ports: [{port: web}]
`, `
client near  tcp/80 allowed
client near  tcp/81 egress
client far   tcp/81 allowed
client far   tcp/80 egress
client other tcp/80 egress
`},
	{"port-range", `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: range, namespace: shop}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - ports: [{port: 8000, endPort: 8010}]
`, `
client near tcp/7999 ingress
client near tcp/8000 allowed
client far  tcp/8005 allowed
client near tcp/8010 allowed
client far  tcp/8011 ingress
client near udp/8005 ingress
`},
	{"icmp", `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: ping, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: server}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: client}}]
    icmps: [{fields: [{type: 8, family: IPv4}]}]
  - fromEndpoints: [{matchLabels: {app: other}}]
    icmps: [{fields: [{type: EchoRequest, family: IPv6}, {type: 13, family: IPv4}]}]
`, `
client near icmp4  allowed
client far  icmp4  allowed
client near icmp6  ingress
other  near icmp6  allowed
other  far  icmp4  ingress
client near tcp/80 ingress
`},
	{"clusterwide", `
apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: inside}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress:
  - toEndpoints: [{matchLabels: {"k8s:io.kubernetes.pod.namespace": shop}}]
`, `
client   near     tcp/80   allowed
stranger near     udp/80   allowed
stranger far      tcp/80   allowed
client   stranger tcp/80   egress inside
stranger world    tcp/8000 egress inside
client   world    icmp     egress inside
`},
}

// openChecks hold where there is no policy.
const openChecks = `
client   near   tcp/80   allowed
client   far    tcp/81   allowed
other    near   udp/7999 allowed
stranger near   icmp     allowed
client   world  tcp/8000 allowed
client   node-1 tcp/80   allowed
client   node-2 udp/80   allowed
node-2   client tcp/80   allowed
`

// Packets do what policies say, between pods of a node and of two, nodes and the
// world, and each drop tells its reason and the policy.
func TestPolicyVerdicts(t *testing.T) {
	t.Parallel()
	p := newPolicyTest(t, Options{})
	p.check(openChecks)
	for _, test := range slices.Concat(verdictTests, entityTests) {
		t.Run(test.name, func(t *testing.T) {
			p := p.on(t)
			p.enforce(test.manifests)
			p.check(test.checks)
		})
	}
	p.check(openChecks)
}
