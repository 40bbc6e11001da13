// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

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
		{"ports", "{fromEntities: [host], toPorts: [{ports: [{port: '65536'}, {port: '010'}, {port: a--b}, {port: sixteen-letters-}, {port: '1', protocol: IP}, {port: '7', protocol: GRE}, {port: 80}, {port: '5', protocol: TCP}]}]}",
			[]string{"[0].toPorts[0].ports[6].port: must be a text, is a number", `[0].toPorts[0].ports[0].port: "65536": is neither the number nor the name of a port`,
				`[0].toPorts[0].ports[1].port: "010": is neither the number nor the name of a port`, `[0].toPorts[0].ports[2].port: "a--b": is neither the number nor the name of a port`,
				`[0].toPorts[0].ports[3].port: "sixteen-letters-": is neither the number nor the name of a port`, `[0].toPorts[0].ports[4].protocol: "IP" is no protocol`,
				`[0].toPorts[0].ports[5].port: GRE has no ports`},
			"allow host at 5/tcp", "deny host"},
		{"ICMP among ports", "{fromEntities: [host], toPorts: [{ports: [{protocol: ICMP}, {port: '8', protocol: icmp}, {port: '0', protocol: ICMPv6}, {port: '5', protocol: TCP}]}]}",
			[]string{`[0].toPorts[0].ports[0].protocol: "ICMP": has no ports, use icmps instead of toPorts`,
				`[0].toPorts[0].ports[1].protocol: "icmp": has no ports, use icmps instead of toPorts`,
				`[0].toPorts[0].ports[2].protocol: "ICMPv6": has no ports, use icmps instead of toPorts`},
			"allow host at 5/tcp", "deny host"},
		{"ICMP alone among ports", "{toPorts: [{ports: [{protocol: ICMP}]}]}",
			[]string{`[0].toPorts[0].ports[0].protocol: "ICMP": has no ports, use icmps instead of toPorts`}, "allow none", "deny any"},
		{"ranges", "{fromEntities: [host], toPorts: [{ports: [{port: '8', endPort: 7}, {port: '0', endPort: 7}, {port: http, endPort: 7}, {port: '8', endPort: 65536}, {endPort: 9, protocol: GRE}]}]}",
			[]string{"[0].toPorts[0].ports[0].endPort: 7 is no port number from 8 on", "[0].toPorts[0].ports[1].endPort: needs a port with a number",
				"[0].toPorts[0].ports[2].endPort: needs a port with a number", "[0].toPorts[0].ports[3].endPort: 65536 is no port number from 8 on", "[0].toPorts[0].ports[4].endPort: GRE has no ranges of ports"},
			"allow none", "deny host"},
		{"no ports", "{fromEntities: [host], toPorts: [{}, {ports: [{port: '5', protocol: TCP}]}]}", []string{"[0].toPorts[0].ports: required"}, "allow host at 5/tcp", "deny host"},
		{"no ports and no peers", "{toPorts: [{}]}", []string{"[0].toPorts[0].ports: required"}, "allow none", "deny any"},
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

// Every tenant of a namespace may write this. It takes a fraction of a second; if the
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
