// SPDX-License-Identifier: Apache-2.0

package objects

import (
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
		return tables.PolicyPeer{Kind: tables.PeerServices, Labels: labels, PeerService: &tables.PeerService{Service: tables.Name{Namespace: namespace, Name: name}}}
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
					{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{CIDR: prefixes("10.0.0.0/8")[0], Except: prefixes("10.96.0.0/12")}},
					{Kind: tables.PeerCIDRGroups, PeerPrefixes: &tables.PeerPrefixes{Group: "office", Except: prefixes("10.0.0.0/24")}},
					{Kind: tables.PeerCIDRGroups, Labels: "site=a", PeerPrefixes: &tables.PeerPrefixes{}},
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
		{"no peers match nothing", all + "ingress: [{fromEndpoints: []}, " +
			"{fromEntities: [], toPorts: [{ports: [{port: '1', protocol: TCP}]}]}]",
			"default deny; allow none; allow none at 1/tcp", "-"},
		{"ports alone are any peer", all + "ingress: [{toPorts: [{ports: [{port: '1', protocol: TCP}]}]}]", "default deny; allow any at 1/tcp", "-"},
		{"no ports are all", all + "ingress: [{fromEntities: [cluster], toPorts: [], icmps: []}]", "default deny; allow kube-apiserver, cluster", "-"},
		{"port 0 is all", all + "ingress: [{toPorts: [{ports: [{port: '0', protocol: TCP}, {protocol: UDP}]}]}]", "default deny; allow any at all/tcp, all/udp", "-"},
		{"any protocol", all + "ingress: [{toPorts: [{ports: [{port: '53'}, {port: '54', protocol: any}]}]}]",
			"default deny; allow any at 53/tcp, 53/udp, 53/sctp, 54/tcp, 54/udp, 54/sctp", "-"},
		{"protocols without ports", all + "egress: [{toPorts: [{ports: [{protocol: VRRP}, {protocol: IGMP, port: '0'}, {protocol: gre}, {protocol: IPIP}, {protocol: IPv6}, {protocol: ESP}, {protocol: AH}]}]}]", "-",
			"default deny; allow any at all/vrrp, all/igmp, all/gre, all/ipip, all/ipv6, all/esp, all/ah"},
		{"ICMP of all families", all + "egress: [{icmps: [{fields: [{type: 8, family: IPv4}]}, {fields: [{type: EchoRequest, family: IPv6}]}]}]", "-",
			"default deny; allow any at type 8/icmp, type 128/icmpv6"},
		{"every entity", all + "ingress: [{fromEntities: [all, world, world-ipv4, world-ipv6, cluster, host, remote-node, kube-apiserver, init, health, unmanaged, ingress, none]}]",
			"default deny; allow all, world, world-ipv4, world-ipv6, kube-apiserver, cluster, host, remote-node, init, health, unmanaged, ingress, none", "-"},
		{"the cluster includes the API server", all + "ingress: [{fromEntities: [cluster]}]\negressDeny: [{toEntities: [kube-apiserver, cluster]}]",
			"default deny; allow kube-apiserver, cluster", "default deny; deny kube-apiserver, cluster"},
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
		{"empty endpoints beside others", all + "ingress: [{fromEndpoints: [], fromEntities: [host]}]\ningressDeny: [{fromEndpoints: [], fromEntities: [host]}]",
			"default deny; allow none; deny none", "-"},
		{"empty nodes beside others", all + "ingress: [{fromEntities: [host], fromNodes: []}]\negressDeny: [{toEntities: [host], toNodes: []}]",
			"default deny; allow none", "default deny; deny none"},
		{"empty entities beside others", all + "egress: [{toEntities: [], toCIDR: [10.0.0.0/8]}]", "-", "default deny; allow none"},
		{"empty prefixes beside others", all + "ingress: [{fromCIDR: [], fromEndpoints: [{}], toPorts: [{ports: [{port: '1', protocol: TCP}]}]}, {fromCIDRSet: [], fromEntities: [host]}]",
			"default deny; allow none at 1/tcp; allow none", "-"},
		{"empty prefixes beside services", all + "egress: [{toCIDR: [], toServices: [{k8sService: {serviceName: a}}]}]", "-", "default deny; allow none"},
		{"empty services, groups and names", all + "egress: [{toServices: [], toGroups: [], toFQDNs: [], toEntities: [host]}]\negressDeny: [{toServices: [], toGroups: [], toPorts: [{ports: [{port: '1', protocol: TCP}]}]}]",
			"-", "default deny; allow host; deny any at 1/tcp"},
		{"empty services with ports", all + "egress: [{toServices: [], toPorts: [{ports: [{port: '1', protocol: TCP}]}]}, {toServices: []}]", "-", "default deny; allow any at 1/tcp; allow none"},
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
			"pods(io.kubernetes.pod.namespace=x)", "default deny; allow kube-apiserver, cluster"},
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
		{"authentication", "{toEntities: [cluster], authentication: {mode: required}}", ".authentication", "mutual authentication is not supported", "allow none", "deny kube-apiserver, cluster"},
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

// A listing is read object by object: unknown fields are found there too.
func TestCiliumPolicyList(t *testing.T) {
	list, err := ciliumPolicyKind().DecodeList([]byte(`{"apiVersion":"cilium.io/v2","kind":"CiliumNetworkPolicyList","items":[
		{"metadata":{"name":"a","namespace":"b"},"spec":{"endpointSelector":{},"ingress":[{"fromEndpoint":[]}]}},
		{"metadata":{"name":"c","namespace":"b"},"spec":{"endpointSelector":{},"ingress":[{}]}}]}`))
	require.NoError(t, err)
	require.Len(t, list.Objects, 2)
	require.Len(t, list.Objects[0].rows[0].(*tables.NetworkPolicy).Errors, 1)
	require.Empty(t, list.Objects[1].rows[0].(*tables.NetworkPolicy).Errors)
}
