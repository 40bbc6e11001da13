// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// decodeCilium decodes the spec of a CiliumNetworkPolicy in namespace default.
func decodeCilium(t testing.TB, spec string) *tables.NetworkPolicy {
	t.Helper()
	return decodeOne[*tables.NetworkPolicy](t, ciliumPolicyKind(), "metadata: {name: p}\nspec:\n  "+indent(spec))
}

func decodeClusterwide(t testing.TB, spec string) *tables.NetworkPolicy {
	t.Helper()
	return decodeOne[*tables.NetworkPolicy](t, ciliumClusterwidePolicyKind(), "metadata: {name: p}\nspec:\n  "+indent(spec))
}

func TestCiliumPolicy(t *testing.T) {
	p := decodeOne[*tables.NetworkPolicy](t, ciliumPolicyKind(), `
metadata: {name: web, namespace: shop, generation: 2}
spec:
  description: the web
  labels: [{key: a, value: b, source: k8s}]
  endpointSelector: {matchLabels: {"any:app": web, "k8s:tier": front}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: proxy}}, {}]
    toPorts: [{ports: [{port: "80", protocol: TCP}, {port: Metrics}]}, {ports: [{port: "8000", endPort: 8010, protocol: UDP}]}]
    authentication: {mode: disabled}
  egressDeny:
  - toCIDRSet: [{cidr: 10.1.2.3/8, except: [10.96.0.0/12]}, {cidrGroupRef: office, except: [10.0.0.0/24]}, {cidrGroupSelector: {matchLabels: {site: a}}}]
specs:
- endpointSelector: {}
  enableDefaultDeny: {egress: false}
  egress:
  - toServices: [{k8sService: {serviceName: db, namespace: data}}, {k8sService: {serviceName: cache}}, {k8sServiceSelector: {selector: {matchLabels: {a: b}}, namespace: data}}, {k8sServiceSelector: {selector: {}}}]
  - icmps: [{fields: [{type: 8}, {family: IPv6, type: EchoRequest}, {type: EchoReply}, {type: "3"}]}]
  - toNodes: [{matchLabels: {zone: a}}, {}]
  - toEntities: [world, kube-apiserver, none]
status: {conditions: []}
`)
	require.Empty(t, p.Errors)
	require.Empty(t, p.Unsupported)
	require.EqualValues(t, 2, p.Generation)
	require.Equal(t, tables.PolicyID{Kind: tables.PolicyCilium, Name: tables.Name{Namespace: "shop", Name: "web"}}, p.ID())
	const ns = "io.kubernetes.pod.namespace=shop"
	pods := func(text string) tables.PolicyPeer {
		return tables.PolicyPeer{Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: text}}
	}
	service := func(namespace, name, labels string) tables.PolicyPeer {
		return tables.PolicyPeer{Kind: tables.PeerServices, Service: tables.Name{Namespace: namespace, Name: name}, Labels: labels}
	}
	require.Equal(t, []tables.PolicyRule{
		{
			Field: "spec", Subject: tables.EgressSelector{Pods: "app=web," + ns + ",tier=front"},
			Ingress: tables.PolicyDirection{DefaultDeny: true, Traffic: []tables.PolicyTraffic{{
				Field: "spec.ingress[0]", Peers: []tables.PolicyPeer{pods("app=proxy," + ns), pods(ns)},
				Ports: []tables.PolicyPort{
					{Protocol: 6, First: 80, Last: 80},
					{Protocol: 6, Name: "metrics"}, {Protocol: 17, Name: "metrics"}, {Protocol: 132, Name: "metrics"},
					{Protocol: 17, First: 8000, Last: 8010},
				},
			}}},
			Egress: tables.PolicyDirection{DefaultDeny: true, Traffic: []tables.PolicyTraffic{{
				Field: "spec.egressDeny[0]", Deny: true,
				Peers: []tables.PolicyPeer{
					{Kind: tables.PeerCIDR, CIDR: prefixes("10.0.0.0/8")[0], Except: prefixes("10.96.0.0/12")},
					{Kind: tables.PeerCIDRGroups, Group: "office", Except: prefixes("10.0.0.0/24")},
					{Kind: tables.PeerCIDRGroups, Labels: "site=a"},
				},
			}}},
		},
		{
			Field: "specs[0]", Subject: tables.EgressSelector{Pods: ns},
			Egress: tables.PolicyDirection{Traffic: []tables.PolicyTraffic{
				{Field: "specs[0].egress[0]", Peers: []tables.PolicyPeer{
					service("data", "db", ""), service("shop", "cache", ""), service("data", "", "a=b"), service("", "", ""),
				}},
				{Field: "specs[0].egress[1]", AnyPeer: true, Ports: []tables.PolicyPort{
					{Protocol: 1, First: 8, Last: 8}, {Protocol: 58, First: 128, Last: 128}, {Protocol: 1}, {Protocol: 1, First: 3, Last: 3},
				}},
				{Field: "specs[0].egress[2]", Peers: []tables.PolicyPeer{{Kind: tables.PeerNodes, Labels: "zone=a"}, {Kind: tables.PeerNodes}}},
				{Field: "specs[0].egress[3]", Peers: []tables.PolicyPeer{
					{Kind: tables.PeerEntity, Entity: tables.EntityWorld}, {Kind: tables.PeerEntity, Entity: tables.EntityKubeAPIServer},
					{Kind: tables.PeerEntity, Entity: tables.EntityNone},
				}},
			}},
		},
	}, p.Rules)
}

// What fields mean, in the words that the table has for it. The names are those
// of the examples of Cilium's documentation, where it has one.
func TestCiliumPolicyMeaning(t *testing.T) {
	const (
		own = "io.kubernetes.pod.namespace=default"
		all = "endpointSelector: {}\n"
	)
	for _, test := range []struct{ name, spec, ingress, egress string }{
		{"simple ingress allow", all + "ingress: [{fromEndpoints: [{matchLabels: {role: frontend}}]}]", "default deny; allow pods(" + own + ",role=frontend)", "-"},
		{"ingress allow all", all + "ingress: [{fromEndpoints: [{}]}]", "default deny; allow pods(" + own + ")", "-"},
		{"ingress default deny", all + "ingress: [{}]", "default deny; allow none", "-"},
		{"egress default deny", all + "egress: [{}]", "-", "default deny; allow none"},
		{"deny nothing", all + "ingressDeny: [{}]", "default deny; deny none", "-"},
		{"no default deny", all + "enableDefaultDeny: {ingress: false}\ningress: [{}]\negress: [{}]", "allow none", "default deny; allow none"},
		{"explicit default deny", all + "enableDefaultDeny: {egress: true}\ningress: [{}]", "default deny; allow none", "default deny"},
		{"no peers are nobody", all + "ingress: [{fromEndpoints: []}, {fromEntities: [], toPorts: [{ports: [{port: '1', protocol: TCP}]}]}]",
			"default deny; allow none; allow none at 1/tcp", "-"},
		{"ports alone are any peer", all + "ingress: [{toPorts: [{ports: [{port: '1', protocol: TCP}]}]}]", "default deny; allow any at 1/tcp", "-"},
		{"no ports are all", all + "ingress: [{fromEntities: [cluster], toPorts: [], icmps: []}]", "default deny; allow cluster", "-"},
		{"port 0 is all", all + "ingress: [{toPorts: [{ports: [{port: '0', protocol: TCP}, {protocol: UDP}]}]}]", "default deny; allow any at all/tcp, all/udp", "-"},
		{"any protocol", all + "ingress: [{toPorts: [{ports: [{port: '53'}, {port: '54', protocol: any}]}]}]",
			"default deny; allow any at 53/tcp, 53/udp, 53/sctp, 54/tcp, 54/udp, 54/sctp", "-"},
		{"protocols without ports", all + "egress: [{toPorts: [{ports: [{protocol: VRRP}, {protocol: IGMP, port: '0'}, {protocol: gre}, {protocol: IPIP}, {protocol: IPv6}, {protocol: ESP}, {protocol: AH}]}]}]", "-",
			"default deny; allow any at all/vrrp, all/igmp, all/gre, all/ipip, all/ipv6, all/esp, all/ah"},
		{"ICMP among ports", all + "egress: [{toPorts: [{ports: [{port: '8', protocol: ICMP}, {protocol: ICMPv6}]}]}]", "-",
			"default deny; allow any at type 8/icmp, all/icmpv6"},
		{"ICMP of all families", all + "egress: [{icmps: [{fields: [{type: 8, family: IPv4}]}, {fields: [{type: EchoRequest, family: IPv6}]}]}]", "-",
			"default deny; allow any at type 8/icmp, type 128/icmpv6"},
		{"every entity", all + "ingress: [{fromEntities: [all, world, world-ipv4, world-ipv6, cluster, host, remote-node, kube-apiserver, init, health, unmanaged, ingress, none]}]",
			"default deny; allow all, world, world-ipv4, world-ipv6, cluster, host, remote-node, kube-apiserver, init, health, unmanaged, ingress, none", "-"},
		{"reserved labels", all + "ingress: [{fromEndpoints: [{matchLabels: {'reserved:ingress': ''}}, {matchExpressions: [{key: 'reserved:host', operator: Exists}]}]}]",
			"default deny; allow ingress, host", "-"},
		{"other namespace", all + "ingress: [{fromEndpoints: [{matchLabels: {'k8s:io.kubernetes.pod.namespace': x, a: b}}]}]", "default deny; allow pods(a=b,io.kubernetes.pod.namespace=x)", "-"},
		{"namespace by expression", all + "ingress: [{fromEndpoints: [{matchExpressions: [{key: io.kubernetes.pod.namespace, operator: Exists}]}]}]", "default deny; allow pods(io.kubernetes.pod.namespace)", "-"},
		{"namespace by its labels", all + "ingress: [{fromEndpoints: [{matchLabels: {'any:io.cilium.k8s.namespace.labels.team': a}}]}]", "default deny; allow pods(io.cilium.k8s.namespace.labels.team=a)", "-"},
		{"service account", all + "ingress: [{fromEndpoints: [{matchLabels: {io.cilium.k8s.policy.serviceaccount: a}}]}]", "default deny; allow pods(io.cilium.k8s.policy.serviceaccount=a," + own + ")", "-"},
		{"cidr", all + "egress: [{toCIDR: [20.1.1.1/32, 20.1.1.2, '2001:db8::1']}, {toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.96.0.0/12]}]}]", "-",
			"default deny; allow 20.1.1.1/32, 20.1.1.2/32, 2001:db8::1/128; allow 10.0.0.0/8 except 10.96.0.0/12"},
		{"deny beside allow", all + "ingress: [{fromEntities: [all]}]\ningressDeny: [{fromEntities: [world], toPorts: [{ports: [{port: '443', protocol: TCP}]}]}]",
			"default deny; allow all; deny world at 443/tcp", "-"},
		{"an empty kind beside another", all + "ingress: [{fromEndpoints: [], fromEntities: [host]}]", "default deny; allow host", "-"},
		{"rules that say nothing", all + "ingress: [{toPorts: [{ports: [{port: '80', protocol: TCP}], rules: {}, serverNames: []}]}]", "default deny; allow any at 80/tcp", "-"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := decodeCilium(t, test.spec)
			require.Empty(t, p.Errors)
			require.Empty(t, p.Unsupported)
			require.Equal(t, []string{"pods(" + own + ")", test.ingress, test.egress}, directions(p))
		})
	}
}

func TestClusterwidePolicy(t *testing.T) {
	for _, test := range []struct{ name, spec, subject, ingress string }{
		{"everything", "endpointSelector: {}\ningress: [{fromEndpoints: [{}]}]", "all", "default deny; allow pods()"},
		{"no namespace is added", "endpointSelector: {matchLabels: {a: b}}\ningress: [{fromEndpoints: [{matchLabels: {c: d}}]}]", "pods(a=b)", "default deny; allow pods(c=d)"},
		{"a namespace", "endpointSelector: {matchLabels: {'k8s:io.kubernetes.pod.namespace': x}}\ningress: [{fromEntities: [cluster]}]",
			"pods(io.kubernetes.pod.namespace=x)", "default deny; allow cluster"},
		{"pods are not init endpoints", "endpointSelector: {matchExpressions: [{key: 'reserved:init', operator: DoesNotExist}, {key: a, operator: Exists}]}\ningress: [{}]",
			"pods(a)", "default deny; allow none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := decodeClusterwide(t, test.spec)
			require.Empty(t, p.Errors)
			require.Empty(t, p.Unsupported)
			require.Equal(t, tables.Name{Name: "p"}, p.Name)
			require.Equal(t, []string{test.subject, test.ingress, "-"}, directions(p))
		})
	}
}

// Each mistake is named. An allow gets narrower by it, a deny wider, and default
// deny stays.
func TestCiliumPolicyErrors(t *testing.T) {
	const own = "pods(io.kubernetes.pod.namespace=default)"
	item := func(field, item string) string { return "endpointSelector: {}\n" + field + ": [" + item + "]" }
	for _, test := range []struct {
		name, item  string // of ingress, or of egress if it begins with to
		errors      []string
		allow, deny string
	}{
		{"unknown field", "{fromEndpoint: [{}]}", []string{"[0].fromEndpoint: no such field"}, "allow none", "deny any"},
		{"field of the other direction", "{toEntities: [world]}", []string{"[0].toEntities: no such field"}, "allow none", "deny any"},
		{"unknown field beside peers", "{fromEntities: [host], fromEndpoint: [{}]}", []string{"[0].fromEndpoint: no such field"}, "allow none", "deny any"},
		{"selector without matchLabels", "{fromEndpoints: [{app: web}]}", []string{"[0].fromEndpoints[0].app: no such field"}, "allow none", "deny any"},
		{"two kinds of peers", "{fromEndpoints: [{}], fromCIDR: [10.0.0.0/8]}", []string{"[0]: only one of fromEndpoints, fromCIDR is allowed"},
			"allow none", "deny " + own + ", 10.0.0.0/8"},
		{"requirements", "{fromEntities: [host], fromRequires: [{}]}", []string{"[0].fromRequires: is not supported any more"}, "allow none", "deny host"},
		{"requirements alone", "{fromRequires: [{}]}", []string{"[0].fromRequires: is not supported any more"}, "allow none", "deny any"},
		{"ports and types", "{fromEntities: [host], toPorts: [{ports: [{port: '1'}]}], icmps: [{fields: [{type: 8}]}]}", []string{"[0].icmps: excludes toPorts"},
			"allow none", "deny host"},
		{"one of two peers", "{fromEntities: [nobody, host]}", []string{`[0].fromEntities[0]: "nobody" is no entity`}, "allow host", "deny any"},
		{"peer of a wrong type", "{fromEntities: [7, host], toPorts: [{ports: [{port: '1', protocol: TCP}]}]}", []string{"[0].fromEntities[0]: must be a text, is a number"},
			"allow host at 1/tcp", "deny any at 1/tcp"},
		{"peers of a wrong type", "{fromEntities: host, toPorts: [{ports: [{port: '1', protocol: TCP}]}]}", []string{"[0].fromEntities: must be a list, is a text"},
			"allow none at 1/tcp", "deny any at 1/tcp"},
		{"item of a wrong type", "host", []string{"[0]: must be an object, is a text"}, "allow none", "deny any"},
		{"null selector", "{fromEndpoints: [null, {}]}", []string{"[0].fromEndpoints[0]: required"}, "allow " + own, "deny any"},
		{"operator", "{fromEndpoints: [{matchExpressions: [{key: a, operator: Is}]}]}", []string{`[0].fromEndpoints[0]: "Is" is not a valid label selector operator`}, "allow none", "deny any"},
		{"label source", "{fromEndpoints: [{matchLabels: {'container:a': b}}]}", []string{`[0].fromEndpoints[0]: labels of source "container" cannot be selected on`}, "allow none", "deny any"},
		{"label that differs", "{fromEndpoints: [{matchLabels: {pod-template-hash: b}}]}",
			[]string{`[0].fromEndpoints[0]: label pod-template-hash changes with each rollout and cannot be selected on`}, "allow none", "deny any"},
		{"reserved label beside another", "{fromEndpoints: [{matchLabels: {'reserved:host': '', a: b}}]}",
			[]string{"[0].fromEndpoints[0]: a reserved label can only be selected on alone, and only as being there"}, "allow none", "deny any"},
		{"reserved label that is not there", "{fromEndpoints: [{matchExpressions: [{key: 'reserved:host', operator: DoesNotExist}]}]}",
			[]string{"[0].fromEndpoints[0]: a reserved label can only be selected on alone, and only as being there"}, "allow none", "deny any"},
		{"no reserved label", "{fromEndpoints: [{matchLabels: {'reserved:all': ''}}]}", []string{"[0].fromEndpoints[0]: reserved:all is no label that is reserved"}, "allow none", "deny any"},
		{"prefixes", "{fromCIDR: [10.0.0.0/33, '', '::ffff:10.0.0.1', 10.0.0.1/8]}", []string{`[0].fromCIDR[0]: "10.0.0.0/33": prefix length out of range`, "[0].fromCIDR[1]: is empty",
			`[0].fromCIDR[2]: "::ffff:10.0.0.1": no '/'`}, "allow 10.0.0.0/8", "deny any"},
		{"address in a set", "{fromCIDRSet: [{cidr: 10.0.0.1}]}", []string{`[0].fromCIDRSet[0].cidr: "10.0.0.1": no '/'`}, "allow none", "deny any"},
		{"exceptions", "{fromCIDRSet: [{cidr: 10.0.0.0/8, except: [10.0.0.0/7]}, {cidr: 11.0.0.0/8, except: [12.0.0.0/16]}, {cidr: 12.0.0.0/8, except: [x, 12.1.0.0/16]}, {cidr: 13.0.0.0/8, except: ['::/0']}]}",
			[]string{`[0].fromCIDRSet[0].except[0]: "10.0.0.0/7" is not inside 10.0.0.0/8`, `[0].fromCIDRSet[1].except[0]: "12.0.0.0/16" is not inside 11.0.0.0/8`,
				`[0].fromCIDRSet[2].except[0]: "x": no '/'`, `[0].fromCIDRSet[3].except[0]: "::/0" is not inside 13.0.0.0/8`},
			"allow none", "deny 10.0.0.0/8, 11.0.0.0/8, 12.0.0.0/8 except 12.1.0.0/16, 13.0.0.0/8"},
		{"nothing in a set", "{fromCIDRSet: [{}, {cidr: 10.0.0.0/8, cidrGroupRef: a}, {cidrGroupRef: a, cidrGroupSelector: {}}, {cidrGroupSelector: {matchExpressions: [{key: a, operator: In}]}}]}",
			[]string{"[0].fromCIDRSet[0]: needs one of cidr, cidrGroupRef and cidrGroupSelector", "[0].fromCIDRSet[1]: only one of cidr, cidrGroupRef and cidrGroupSelector is allowed",
				"[0].fromCIDRSet[2]: only one of cidr, cidrGroupRef and cidrGroupSelector is allowed", "[0].fromCIDRSet[3].cidrGroupSelector: values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty"},
			"allow none", "deny any"},
		{"nodes", "{fromNodes: [null, {matchExpressions: [{key: a, operator: Is}]}]}", []string{"[0].fromNodes[0]: required", `[0].fromNodes[1]: "Is" is not a valid label selector operator`}, "allow none", "deny any"},
		{"services", "{toServices: [{}, {k8sService: {}}, {k8sServiceSelector: {}}, {k8sService: {serviceName: a}, k8sServiceSelector: {selector: {}}}, {k8sService: {serviceName: a}}]}",
			[]string{"[0].toServices[0]: needs k8sService or k8sServiceSelector", "[0].toServices[1].k8sService.serviceName: required", "[0].toServices[2].k8sServiceSelector.selector: required",
				"[0].toServices[3]: only one of k8sService and k8sServiceSelector is allowed"}, "allow service default/a", "deny any"},
		{"services without a mistake", "{toServices: [{k8sService: {serviceName: a}}, {k8sServiceSelector: {selector: {}}}]}", nil, "allow service default/a, services()", "deny all of service default/a, all of services()"},
		{"ports", "{fromEntities: [host], toPorts: [{ports: [{port: '65536'}, {port: '010'}, {port: a--b}, {port: sixteen-letters-}, {port: '1', protocol: IP}, {port: '7', protocol: GRE}, {port: http, protocol: ICMP}, {port: '256', protocol: ICMPv6}, {port: 80}, {port: '5', protocol: TCP}]}]}",
			[]string{"[0].toPorts[0].ports[8].port: must be a text, is a number", `[0].toPorts[0].ports[0].port: "65536": is neither the number nor the name of a port`,
				`[0].toPorts[0].ports[1].port: "010": is neither the number nor the name of a port`, `[0].toPorts[0].ports[2].port: "a--b": is neither the number nor the name of a port`,
				`[0].toPorts[0].ports[3].port: "sixteen-letters-": is neither the number nor the name of a port`, `[0].toPorts[0].ports[4].protocol: "IP" is no protocol`,
				`[0].toPorts[0].ports[5].port: GRE has no ports`, `[0].toPorts[0].ports[6].port: "http" is no ICMP type`, `[0].toPorts[0].ports[7].port: "256" is no ICMP type`},
			"allow host at 5/tcp", "deny host"},
		{"ranges", "{fromEntities: [host], toPorts: [{ports: [{port: '8', endPort: 7}, {port: '0', endPort: 7}, {port: http, endPort: 7}, {port: '8', endPort: 65536}, {port: '8', endPort: 9, protocol: ICMP}]}]}",
			[]string{"[0].toPorts[0].ports[0].endPort: 7 is no port number from 8 on", "[0].toPorts[0].ports[1].endPort: needs a port with a number",
				"[0].toPorts[0].ports[2].endPort: needs a port with a number", "[0].toPorts[0].ports[3].endPort: 65536 is no port number from 8 on", "[0].toPorts[0].ports[4].endPort: ICMP has no ranges of ports"},
			"allow none", "deny host"},
		{"no ports", "{fromEntities: [host], toPorts: [{}, {ports: [{port: '5', protocol: TCP}]}]}", []string{"[0].toPorts[0].ports: required"}, "allow host at 5/tcp", "deny host"},
		{"unknown field of ports", "{fromEntities: [host], toPorts: [{port: 7, ports: [{port: '6', protocol: TCP}]}, {ports: [{port: '5', protocol: TCP}]}]}",
			[]string{"[0].toPorts[0].port: no such field"}, "allow host at 5/tcp", "deny host"},
		{"ports of a wrong type", "{fromEntities: [host], toPorts: 80}", []string{"[0].toPorts: must be a list, is a number"}, "allow none", "deny host"},
		{"ICMP", "{fromEntities: [host], icmps: [{}, {fields: [{type: 256}, {type: Pong}, {family: IPv5, type: 1}, {}, {type: 1.5}, {type: PacketTooBig}, {type: 4}]}, {fields: [{type: 5}], code: 1}]}",
			[]string{"[0].icmps[2].code: no such field", "[0].icmps[0].fields: required", "[0].icmps[1].fields[0]: 256 is no type of ICMP", `[0].icmps[1].fields[1]: "Pong": is no type of ICMP of IPv4`,
				`[0].icmps[1].fields[2]: family "IPv5" is neither IPv4 nor IPv6`, "[0].icmps[1].fields[3]: type: required", "[0].icmps[1].fields[4]: type is neither a number nor a name",
				`[0].icmps[1].fields[5]: "PacketTooBig": is no type of ICMP of IPv4`}, "allow host at type 4/icmp", "deny host"},
		{"removed protocols", "{fromEntities: [host], toPorts: [{ports: [{port: '6'}], rules: {kafka: [{}], l7proto: x, l7: [{}], ftp: []}}, {ports: [{port: '5', protocol: TCP}]}]}",
			[]string{"[0].toPorts[0].rules.ftp: no such field", "[0].toPorts[0].rules.kafka: is not supported any more", "[0].toPorts[0].rules.l7: is not supported any more", "[0].toPorts[0].rules.l7proto: is not supported any more"},
			"allow host at 5/tcp", "deny host"},
		{"authentication", "{fromEntities: [host], authentication: {mode: maybe}}", []string{`[0].authentication.mode: "maybe": must be disabled, required or test-always-fail`}, "allow none", "deny host"},
	} {
		for _, deny := range []bool{false, true} {
			field, want := "ingress", test.allow
			if strings.HasPrefix(test.item, "{toServices") {
				field = "egress"
			}
			if deny {
				field, want = field+"Deny", test.deny
			}
			t.Run(test.name+" "+field, func(t *testing.T) {
				p := decodeCilium(t, item(field, test.item))
				var errs []string
				for _, e := range test.errors {
					errs = append(errs, "spec."+field+e)
				}
				require.ElementsMatch(t, errs, errorTexts(p.Errors))
				ingress, egress := "default deny; "+want, "-"
				if strings.HasPrefix(field, "egress") {
					ingress, egress = egress, ingress
				}
				require.Equal(t, []string{own, ingress, egress}, directions(p))
			})
		}
	}
}

// Mistakes that concern a whole rule.
func TestCiliumRuleErrors(t *testing.T) {
	const own = "pods(io.kubernetes.pod.namespace=default)"
	for _, test := range []struct {
		name, spec      string
		errors          []string
		subject         string // empty if the rule is left out
		ingress, egress string
	}{
		{"no subject", "ingress: [{}]", []string{"spec.endpointSelector: required"}, "", "", ""},
		{"two subjects", "endpointSelector: {}\nnodeSelector: {}\ningress: [{}]", []string{"spec.nodeSelector: excludes endpointSelector"}, "", "", ""},
		{"nodes in a namespace", "nodeSelector: {}\ningress: [{}]", []string{"spec.nodeSelector: only clusterwide policies may have it"}, "", "", ""},
		{"subject of a wrong type", "endpointSelector: web\ningress: [{}]", []string{"spec.endpointSelector: must be an object, is a text"}, "", "", ""},
		{"subject without matchLabels", "endpointSelector: {app: web}\ningress: [{}]", []string{"spec.endpointSelector.app: no such field"}, "", "", ""},
		{"operator", "endpointSelector: {matchExpressions: [{key: a, operator: Is}]}\ningress: [{}]", []string{`spec.endpointSelector: "Is" is not a valid label selector operator`}, "", "", ""},
		{"spec of a wrong type", "7", []string{"spec: must be an object, is a number"}, "", "", ""},
		{"other namespace", "endpointSelector: {matchLabels: {a: b, 'k8s:io.kubernetes.pod.namespace': x}}\ningress: [{}]",
			[]string{`spec.endpointSelector: a policy selects in its own namespace: "x" does not count`}, "pods(a=b,io.kubernetes.pod.namespace=default)", "default deny; allow none", "-"},
		{"nothing said", "endpointSelector: {}", []string{"spec: needs one of ingress, ingressDeny, egress and egressDeny"}, own, "-", "-"},
		{"empty lists", "endpointSelector: {}\ningress: []", []string{"spec: needs one of ingress, ingressDeny, egress and egressDeny"}, own, "-", "-"},
		{"unknown field", "endpointSelector: {}\ningresses: []\ningress: [{}]", []string{"spec.ingresses: no such field"}, own, "default deny; allow none", "-"},
		{"allows of a wrong type", "endpointSelector: {}\ningress: web", []string{"spec.ingress: must be a list, is a text"}, own, "default deny", "-"},
		{"denies of a wrong type", "endpointSelector: {}\ningress: [{fromEntities: [all]}]\ningressDeny: web", []string{"spec.ingressDeny: must be a list, is a text"}, own, "default deny; allow all; deny any", "-"},
		{"default deny of a wrong type", "endpointSelector: {}\nenableDefaultDeny: {ingress: \"false\", egress: false}\ningress: [{}]\negress: [{}]",
			[]string{"spec.enableDefaultDeny.ingress: must be true or false, is a text"}, own, "default deny; allow none", "allow none"},
		{"default deny as a whole", "endpointSelector: {}\nenableDefaultDeny: false\ningress: [{}]", []string{"spec.enableDefaultDeny: must be an object, is true or false"},
			own, "default deny; allow none", "default deny"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := decodeCilium(t, test.spec)
			require.Equal(t, test.errors, errorTexts(p.Errors))
			if test.subject == "" {
				require.Empty(t, p.Rules)
				return
			}
			require.Equal(t, []string{test.subject, test.ingress, test.egress}, directions(p))
		})
	}
	for text, want := range map[string]string{
		"metadata: {name: p}": "spec: required, unless there are specs",
		"metadata: {name: p}\nspecs: [null, {endpointSelector: {}, ingress: [{}]}]": "specs[0]: required",
		"metadata: {name: p}\nspecs: {}":                                            "specs: must be a list, is an object",
	} {
		p := decodeOne[*tables.NetworkPolicy](t, ciliumPolicyKind(), text)
		require.Equal(t, []string{want}, errorTexts(p.Errors))
		require.Len(t, p.Rules, strings.Count(text, "endpointSelector"))
	}
	p := decodeClusterwide(t, "endpointSelector: {}\negress: [{toServices: [{k8sService: {serviceName: a}}]}]")
	require.Equal(t, []string{"spec.egress[0].toServices[0].k8sService.namespace: required in a clusterwide policy"}, errorTexts(p.Errors))
}

// What needs what the agent does not have is named, and allows nothing. A deny of
// it is in force, without what is not supported of it.
func TestCiliumPolicyUnsupported(t *testing.T) {
	const ports = "ports: [{port: '80', protocol: TCP}]"
	for _, test := range []struct {
		name, item  string
		field       string
		reason      string
		allow, deny string
	}{
		{"http", "{toPorts: [{" + ports + ", rules: {http: [{method: GET}]}}]}", ".toPorts[0]", "needs a proxy for http rules, which is not supported", "allow none", "deny any at 80/tcp"},
		{"dns", "{toPorts: [{" + ports + ", rules: {dns: [{matchPattern: '*'}]}}]}", ".toPorts[0]", "needs a proxy for dns rules, which is not supported", "allow none", "deny any at 80/tcp"},
		{"server names", "{toPorts: [{" + ports + ", serverNames: [a.example]}]}", ".toPorts[0]", "needs a proxy for serverNames, which is not supported", "allow none", "deny any at 80/tcp"},
		{"TLS", "{toPorts: [{" + ports + ", terminatingTLS: {}, originatingTLS: {}}]}", ".toPorts[0]", "needs a proxy for terminatingTLS, originatingTLS, which is not supported", "allow none", "deny any at 80/tcp"},
		{"listener", "{toPorts: [{" + ports + ", listener: {name: a}}]}", ".toPorts[0]", "needs a proxy for listener, which is not supported", "allow none", "deny any at 80/tcp"},
		{"one of two", "{toPorts: [{ports: [{port: '53', protocol: UDP}]}, {" + ports + ", rules: {http: []}}]}", ".toPorts[1]", "needs a proxy for http rules, which is not supported",
			"allow any at 53/udp; allow none", "deny any at 53/udp, 80/tcp"},
		{"names", "{toFQDNs: [{matchName: a.example}], toPorts: [{" + ports + "}]}", ".toFQDNs", "needs a proxy for names, which is not supported", "allow none", "deny any at 80/tcp"},
		{"groups", "{toGroups: [{aws: {}}]}", ".toGroups", "groups of a cloud provider are not supported", "allow none", "deny any"},
		{"authentication", "{toEntities: [cluster], authentication: {mode: required}}", ".authentication", "mutual authentication is not supported", "allow none", "deny cluster"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for field, want := range map[string]string{"egress": test.allow, "egressDeny": test.deny} {
				p := decodeCilium(t, "endpointSelector: {}\n"+field+": ["+test.item+"]")
				require.Empty(t, p.Errors)
				require.Equal(t, []string{"spec." + field + "[0]" + test.field + ": " + test.reason}, errorTexts(p.Unsupported))
				require.Equal(t, "default deny; "+want, p.Rules[0].Egress.String())
				traffic := p.Rules[0].Egress.Traffic
				require.Equal(t, test.reason, traffic[len(traffic)-1].Unsupported)
			}
		})
	}
	p := decodeClusterwide(t, "nodeSelector: {matchLabels: {zone: a}}\ningress: [{fromEntities: [cluster]}]")
	require.Empty(t, p.Errors)
	require.Empty(t, p.Rules)
	require.Equal(t, []string{"spec.nodeSelector: policies for nodes are not supported"}, errorTexts(p.Unsupported))
	p = decodeClusterwide(t, "endpointSelector: {matchLabels: {'reserved:ingress': ''}}\ningress: [{}]")
	require.Empty(t, p.Errors)
	require.Empty(t, p.Rules)
	require.Equal(t, []string{"spec.endpointSelector: endpoints with label reserved:ingress are not supported"}, errorTexts(p.Unsupported))
}

func TestCiliumPolicyTooMuch(t *testing.T) {
	ports, types := "", ""
	for i := range 41 {
		ports += fmt.Sprintf("{port: '%d', protocol: TCP},", i+1)
		types += fmt.Sprintf("{type: %d},", i)
	}
	for item, want := range map[string]string{
		"toPorts: [{ports: [" + ports + "]}]": "spec.ingress[0].toPorts[0].ports: has 41 items, more than 40",
		"icmps: [{fields: [" + types + "]}]":  "spec.ingress[0].icmps[0].fields: has 41 items, more than 40",
	} {
		p := decodeCilium(t, "endpointSelector: {}\ningress: [{"+item+"}]\ningressDeny: [{"+item+"}]")
		require.Equal(t, []string{want, strings.Replace(want, "ingress", "ingressDeny", 1)}, errorTexts(p.Errors))
		require.Len(t, p.Rules[0].Ingress.Traffic[0].Ports, 40)
		require.Empty(t, p.Rules[0].Ingress.Traffic[1].Ports, "all are denied")
		require.True(t, p.Rules[0].Ingress.Traffic[1].AnyPeer)
	}
	// More unknown fields than the decoder names.
	unknown := ""
	for i := range 200 {
		unknown += fmt.Sprintf("x%d: 1, ", i)
	}
	p := decodeCilium(t, "{endpointSelector: {}, ingress: [{"+unknown+" fromEntities: [all]}], "+unknown+"}")
	require.Empty(t, p.Rules)
	require.Contains(t, errorTexts(p.Errors), "spec: unknown fields")
}

// A listing is read object by object: unknown fields are found there too.
func TestCiliumPolicyList(t *testing.T) {
	list, err := ciliumPolicyKind().DecodeList([]byte(`{"items":[
		{"metadata":{"name":"a","namespace":"b"},"spec":{"endpointSelector":{},"ingress":[{"fromEndpoint":[]}]}},
		{"metadata":{"name":"c","namespace":"b"},"spec":{"endpointSelector":{},"ingress":[{}]}}]}`))
	require.NoError(t, err)
	require.Len(t, list.Objects, 2)
	require.Len(t, list.Objects[0].rows[0].(*tables.NetworkPolicy).Errors, 1)
	require.Empty(t, list.Objects[1].rows[0].(*tables.NetworkPolicy).Errors)
}

// Anybody in a namespace may write this. It takes a fraction of a second; if the
// work were quadratic in the number of mistakes it would be a minute.
func TestCiliumPolicyFullOfMistakes(t *testing.T) {
	const n = 50_000
	data := `{"metadata":{"name":"a"},"spec":{"endpointSelector":{},"egress":[{"toCIDR":["x"` + strings.Repeat(`,"x"`, n-1) + `]}]}}`
	o, err := ciliumPolicyKind().Decode([]byte(data))
	require.NoError(t, err)
	p := o.rows[0].(*tables.NetworkPolicy)
	require.Len(t, p.Errors, n)
	require.Empty(t, p.Rules[0].Egress.Traffic[0].Peers)
}
