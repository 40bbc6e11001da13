// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// decodeKubernetes decodes the spec of a NetworkPolicy in namespace default.
func decodeKubernetes(t testing.TB, spec string) *tables.NetworkPolicy {
	t.Helper()
	return decodeOne[*tables.NetworkPolicy](t, networkPolicyKind(), "metadata: {name: p}\nspec:\n  "+indent(spec))
}

func indent(spec string) string { return strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ") }

// directions renders the rules of a policy: each on three lines.
func directions(p *tables.NetworkPolicy) []string {
	var out []string
	for _, r := range p.Rules {
		out = append(out, r.Subject.String(), r.Ingress.String(), r.Egress.String())
	}
	return out
}

func TestKubernetesPolicy(t *testing.T) {
	p := decodeOne[*tables.NetworkPolicy](t, networkPolicyKind(), `
metadata: {name: db, namespace: shop, uid: u1, generation: 3, creationTimestamp: 2025-03-01T12:00:00Z}
spec:
  podSelector: {matchLabels: {role: db}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from:
    - ipBlock: {cidr: 172.17.0.9/16, except: [172.17.1.0/24]}
    - namespaceSelector: {matchLabels: {project: mine}}
    - podSelector: {matchLabels: {role: frontend}}
    - namespaceSelector: {}
      podSelector: {matchExpressions: [{key: role, operator: In, values: [b, a]}]}
    ports: [{protocol: TCP, port: 6379}]
  egress:
  - to: [{ipBlock: {cidr: "2001:db8::/32"}}]
    ports: [{port: 32000, endPort: 32768}, {protocol: UDP, port: dns}, {protocol: SCTP}]
  - {}
`)
	require.Empty(t, p.Errors)
	require.Equal(t, tables.PolicyKubernetes, p.Kind)
	require.Equal(t, tables.Name{Namespace: "shop", Name: "db"}, p.Name)
	require.EqualValues(t, 3, p.Generation)
	require.Equal(t, "u1", p.UID)
	require.Equal(t, 2025, p.Created.Year())
	ns := "io.kubernetes.pod.namespace=shop"
	require.Equal(t, []tables.PolicyRule{{
		Field: "spec", Subject: tables.EgressSelector{Pods: ns + ",role=db"},
		Ingress: tables.PolicyDirection{DefaultDeny: true, Traffic: []tables.PolicyTraffic{{
			Field: "spec.ingress[0]",
			Peers: []tables.PolicyPeer{
				{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{CIDR: prefixes("172.17.0.0/16")[0], Except: prefixes("172.17.1.0/24"), MatchesPods: true}},
				{Kind: tables.PeerPods, Pods: tables.EgressSelector{Namespaces: "project=mine"}},
				{Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: ns + ",role=frontend"}},
				{Kind: tables.PeerPods, Pods: tables.EgressSelector{Pods: "role in (a,b)"}},
			},
			Ports: []tables.PolicyPort{{Protocol: 6, First: 6379, Last: 6379}},
		}}},
		Egress: tables.PolicyDirection{DefaultDeny: true, Traffic: []tables.PolicyTraffic{
			{
				Field: "spec.egress[0]",
				Peers: []tables.PolicyPeer{{Kind: tables.PeerCIDR, PeerPrefixes: &tables.PeerPrefixes{CIDR: prefixes("2001:db8::/32")[0], MatchesPods: true}}},
				Ports: []tables.PolicyPort{
					{Protocol: 6, First: 32000, Last: 32768}, {Protocol: 17, Name: "dns"}, {Protocol: 132, Last: 65535},
				},
			},
			{Field: "spec.egress[1]", AnyPeer: true},
		}},
	}}, p.Rules)
}

// The examples of the Kubernetes documentation, and what the absence of fields
// means.
func TestKubernetesPolicyMeaning(t *testing.T) {
	const all = "pods(io.kubernetes.pod.namespace=default)"
	for _, test := range []struct{ name, spec, subject, ingress, egress string }{
		{"default deny all ingress", "podSelector: {}\npolicyTypes: [Ingress]", all, "default deny", "-"},
		{"allow all ingress", "podSelector: {}\ningress: [{}]\npolicyTypes: [Ingress]", all, "default deny; allow any", "-"},
		{"default deny all egress", "podSelector: {}\npolicyTypes: [Egress]", all, "-", "default deny"},
		{"allow all egress", "podSelector: {}\negress: [{}]\npolicyTypes: [Egress]", all, "-", "default deny; allow any"},
		{"default deny all", "podSelector: {}\npolicyTypes: [Ingress, Egress]", all, "default deny", "default deny"},
		{"types unset", "podSelector: {}", all, "default deny", "-"},
		{"types unset, with egress", "egress: [{}]", all, "default deny", "default deny; allow any"},
		{"types without egress", "egress: [{}]\npolicyTypes: [Ingress]", all, "default deny", "-"},
		{"types without ingress", "ingress: [{}]\npolicyTypes: [Egress]", all, "-", "default deny"},
		{"from and ports empty", "ingress: [{from: [], ports: []}]", all, "default deny; allow any", "-"},
		{"ports only", "ingress: [{ports: [{port: 80}, {port: http}]}]", all, "default deny; allow any at 80/tcp, http/tcp", "-"},
		{"all ports of a protocol", "ingress: [{ports: [{protocol: UDP}]}]", all, "default deny; allow any at all/udp", "-"},
		{"every pod", "ingress: [{from: [{namespaceSelector: {}}]}]", all, "default deny; allow pods()", "-"},
		{"every pod of the namespace", "ingress: [{from: [{podSelector: {}}]}]", all, "default deny; allow " + all, "-"},
		{"namespaces by expression", "egress: [{to: [{namespaceSelector: {matchExpressions: [{key: namespace, operator: In, values: [b, a]}]}}]}]", all,
			"default deny", "default deny; allow namespaces(namespace in (a,b))"},
		{"namespace by name", "ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}, podSelector: {matchLabels: {a: b}}}]}]", all,
			"default deny; allow namespaces(kubernetes.io/metadata.name=x) pods(a=b)", "-"},
		{"not in", "podSelector: {matchExpressions: [{key: a, operator: NotIn, values: [b]}, {key: c, operator: DoesNotExist}]}",
			"pods(a notin (b),!c,io.kubernetes.pod.namespace=default)", "default deny", "-"},
		{"an exception as large as the block", "ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}]", all,
			"default deny; allow 10.0.0.0/8 except 10.0.0.0/8 or pods there", "-"},
		{"the same twice", "ingress: [{from: [{podSelector: {}}, {podSelector: {}}], ports: [{port: 1}, {port: 1, protocol: TCP}]}]", all,
			"default deny; allow " + all + " at 1/tcp", "-"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := decodeKubernetes(t, test.spec)
			require.Empty(t, p.Errors)
			require.Empty(t, p.Unsupported)
			require.Equal(t, []string{test.subject, test.ingress, test.egress}, directions(p))
		})
	}
}

// Each mistake is named, and allows nothing.
func TestKubernetesPolicyErrors(t *testing.T) {
	const all = "pods(io.kubernetes.pod.namespace=default)"
	for _, test := range []struct {
		name, spec string
		errors     []string
		ingress    string // empty if the rule is left out
		egress     string
	}{
		{"a field that there is not", "ingress: [{form: [{podSelector: {}}]}]", []string{"spec.ingress[0].form: no such field"}, "default deny; allow none", "-"},
		{"a field in a peer", "ingress: [{from: [{podSelector: {app: web}}, {podSelector: {}}]}]",
			[]string{"spec.ingress[0].from[0].podSelector.app: no such field"}, "default deny; allow " + all, "-"},
		{"subject", "podSelector: {matchExpressions: [{key: a, operator: Is}]}", []string{`spec.podSelector: "Is" is not a valid label selector operator`}, "", ""},
		{"subject of a wrong type", "podSelector: web", []string{"spec.podSelector: must be an object, is a text"}, "", ""},
		{"subject by a label that differs", "podSelector: {matchLabels: {pod-template-hash: x}}",
			[]string{"spec.podSelector: label pod-template-hash changes with each rollout and cannot be selected on"}, "", ""},
		{"subject in another namespace", "podSelector: {matchLabels: {io.kubernetes.pod.namespace: x}}",
			[]string{`spec.podSelector: a policy selects in its own namespace, not in "x"`}, "", ""},
		{"spec of a wrong type", "[]", []string{"spec: must be an object, is a list"}, "", ""},
		{"policy types", "policyTypes: [Ingress, egress]", []string{`spec.policyTypes[1]: "egress" is neither Ingress nor Egress`}, "default deny", "default deny"},
		{"policy types of a wrong type", "policyTypes: Egress", []string{"spec.policyTypes: must be a list, is a text"}, "default deny", "default deny"},
		{"items of a wrong type", "ingress: web\negress: [web]", []string{"spec.ingress: must be a list, is a text", "spec.egress[0]: must be an object, is a text"},
			"default deny", "default deny; allow none"},
		{"peers of a wrong type", "ingress: [{from: web}, {from: [web]}]",
			[]string{"spec.ingress[0].from: must be a list, is a text", "spec.ingress[1].from[0]: must be an object, is a text"},
			"default deny; allow none; allow none", "-"},
		{"peer without a selector", "ingress: [{from: [{}]}]", []string{"spec.ingress[0].from[0]: needs one of podSelector, namespaceSelector and ipBlock"},
			"default deny; allow none", "-"},
		{"block and selector", "ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8}, podSelector: {}}, {podSelector: {}}]}]",
			[]string{"spec.ingress[0].from[0]: ipBlock excludes podSelector and namespaceSelector"}, "default deny; allow " + all, "-"},
		{"blocks", "ingress: [{from: [{ipBlock: {cidr: 10.0.0.1}}, {ipBlock: {}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/33]}}, {ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}, {ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/7]}}]}]",
			[]string{`spec.ingress[0].from[0].ipBlock.cidr: "10.0.0.1": no '/'`, `spec.ingress[0].from[1].ipBlock.cidr: is empty`,
				`spec.ingress[0].from[2].ipBlock.except[0]: "10.0.0.0/33": prefix length out of range`,
				`spec.ingress[0].from[3].ipBlock.except[0]: "11.0.0.0/16" is not inside 10.0.0.0/8`,
				`spec.ingress[0].from[4].ipBlock.except[0]: "10.0.0.0/7" is not inside 10.0.0.0/8`},
			"default deny; allow none", "-"},
		{"selectors of peers", "ingress: [{from: [{namespaceSelector: {matchLabels: {a b: c}}}, {podSelector: {matchLabels: {a: 1}}}]}]",
			[]string{"spec.ingress[0].from[1].podSelector.matchLabels.a: must be a text, is a number", `spec.ingress[0].from[0].namespaceSelector: key: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`},
			"default deny; allow none", "-"},
		{"ports", `ingress: [{ports: [{port: 0}, {port: 65536}, {port: "80"}, {port: Http}, {port: 1, protocol: ICMP}, {port: 1, protocol: tcp}, {port: [1]}, {port: 1.5}, {port: 7}]}]`,
			[]string{"spec.ingress[0].ports[0].port: 0 is no port number", "spec.ingress[0].ports[1].port: 65536 is no port number",
				`spec.ingress[0].ports[2].port: "80" is no name of a port`, `spec.ingress[0].ports[3].port: "Http" is no name of a port`,
				`spec.ingress[0].ports[4].protocol: "ICMP": must be TCP, UDP or SCTP`, `spec.ingress[0].ports[5].protocol: "tcp": must be TCP, UDP or SCTP`,
				"spec.ingress[0].ports[6].port: is neither a number nor a name", "spec.ingress[0].ports[7].port: is neither a number nor a name"},
			"default deny; allow any at 7/tcp", "-"},
		{"ranges", `ingress: [{ports: [{port: 8, endPort: 7}, {endPort: 7}, {port: http, endPort: 7}, {port: 8, endPort: 65536}, {port: 8, endPort: x}]}]`,
			[]string{"spec.ingress[0].ports[4].endPort: must be a number, is a text", "spec.ingress[0].ports[0].endPort: 7 is no port number from 8 on", "spec.ingress[0].ports[1].endPort: needs a port with a number",
				"spec.ingress[0].ports[2].endPort: needs a port with a number", "spec.ingress[0].ports[3].endPort: 65536 is no port number from 8 on"},
			"default deny; allow none", "-"},
		{"ports of a wrong type", "ingress: [{ports: 80}]", []string{"spec.ingress[0].ports: must be a list, is a number"}, "default deny; allow none", "-"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := decodeKubernetes(t, test.spec)
			require.Equal(t, test.errors, errorTexts(p.Errors))
			if test.ingress == "" {
				require.Empty(t, p.Rules)
				return
			}
			require.Equal(t, []string{all, test.ingress, test.egress}, directions(p))
		})
	}
	p := decodeOne[*tables.NetworkPolicy](t, networkPolicyKind(), "metadata: {name: p}")
	require.Equal(t, []string{"spec: required"}, errorTexts(p.Errors))
	require.Empty(t, p.Rules)
}

func TestCIDRGroup(t *testing.T) {
	g := decodeOne[*tables.CIDRGroup](t, cidrGroupKind(), `
metadata: {name: office, labels: {site: a}}
spec: {externalCIDRs: [192.0.2.9/24, 192.0.2.0/24, 198.51.100.7, "2001:db8::1", 10.0.0.0/33, 7, x]}
`)
	require.Equal(t, &tables.CIDRGroup{
		Name: "office", Labels: map[string]string{"site": "a"},
		Prefixes: prefixes("192.0.2.0/24", "198.51.100.7/32", "2001:db8::1/128"),
		Errors: []tables.FieldError{
			{Field: "spec.externalCIDRs[5]", Reason: "must be a text, is a number"},
			{Field: "spec.externalCIDRs[4]", Reason: `"10.0.0.0/33": prefix length out of range`},
			{Field: "spec.externalCIDRs[6]", Reason: `"x": no '/'`},
		},
	}, g)
}
