// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func decodePolicy(t testing.TB, spec string) *tables.EgressPolicy {
	t.Helper()
	return decodeOne[*tables.EgressPolicy](t, egressPolicyKind(),
		"metadata: {name: p}\nspec:\n  "+strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  "))
}

func TestEgressPolicy(t *testing.T) {
	p := decodePolicy(t, `
selectors:
- namespaceSelector: {matchLabels: {team: a}}
  podSelector: {matchLabels: {"k8s:app": web, io.kubernetes.pod.namespace: shop}, matchExpressions: [{key: "any:tier", operator: In, values: [b, a]}]}
  nodeSelector: {matchExpressions: [{key: zone, operator: Exists}]}
- podSelector: {}
destinationCIDRs: [10.0.0.1/8, "2001:db8::/32", 10.0.0.0/8]
excludedCIDRs: [10.1.0.0/16]
egressGateway: {nodeSelector: {}, interface: ignored}
egressGateways:
- {nodeSelector: {matchLabels: {egress: "true"}}, egressIP: 192.0.2.1}
- {nodeSelector: {matchLabels: {egress: "true"}}, interface: eth1}
- {nodeSelector: {}}
`)
	require.Empty(t, p.Errors)
	require.Equal(t, []tables.EgressSelector{
		{Namespaces: "team=a", Pods: "app=web,io.kubernetes.pod.namespace=shop,tier in (a,b)", Nodes: "zone"},
		{},
	}, p.Selectors)
	require.Equal(t, prefixes("10.0.0.0/8", "2001:db8::/32"), p.Destinations)
	require.Equal(t, prefixes("10.1.0.0/16"), p.Excluded)
	require.Equal(t, []tables.GatewaySpec{
		{Nodes: "egress=true", EgressIP: netip.MustParseAddr("192.0.2.1")},
		{Nodes: "egress=true", Interface: "eth1"},
		{},
	}, p.Gateways)
}

// Each mistake is named, and only what is wrong is left out.
func TestEgressPolicyErrors(t *testing.T) {
	const (
		selectors    = "selectors: [{podSelector: {}}]\n"
		destinations = "destinationCIDRs: [0.0.0.0/0]\n"
		gateway      = "egressGateway: {nodeSelector: {}}\n"
	)
	for _, test := range []struct {
		name, spec string
		errors     []string
		selectors  int
		gateways   []string // the error of each
	}{
		{"fine", selectors + destinations + gateway, nil, 1, []string{""}},
		{"selector without namespace and pod", "selectors: [{nodeSelector: {}}, {namespaceSelector: {}}]\n" + destinations + gateway,
			[]string{"spec.selectors[0]: needs a namespaceSelector or a podSelector"}, 1, []string{""}},
		{"operator", "selectors: [{podSelector: {matchExpressions: [{key: a, operator: Is}]}}]\n" + destinations + gateway,
			[]string{`spec.selectors[0].podSelector: "Is" is not a valid label selector operator`}, 0, []string{""}},
		{"source of a label", `selectors: [{podSelector: {matchLabels: {"reserved:host": ""}}}]` + "\n" + destinations + gateway,
			[]string{`spec.selectors[0].podSelector: key: Invalid value: "reserved:host": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`}, 0, []string{""}},
		{"part of a selector of a wrong type", "selectors: [{podSelector: app=web, namespaceSelector: {}}, {podSelector: {matchLabels: {a: 1}}}, {podSelector: {}}]\n" + destinations + gateway,
			[]string{"spec.selectors[0].podSelector: must be an object, is a text", "spec.selectors[1].podSelector.matchLabels.a: must be a text, is a number"}, 1, []string{""}},
		{"item of a wrong type", "selectors: [web, {podSelector: {}}]\n" + destinations + gateway,
			[]string{"spec.selectors[0]: must be an object, is a text"}, 1, []string{""}},
		{"nothing", "{}", []string{
			"spec.selectors: required", "spec.destinationCIDRs: required",
			"spec.egressGateway: required, unless there are egressGateways",
		}, 0, []string{"spec.egressGateway: required, unless there are egressGateways"}},
		{"prefixes", selectors + "destinationCIDRs: [10.0.0.0/8, 10.0.0.0/33, \"::ffff:10.0.0.0/104\", 10.0.0.1, 7, \"\"]\nexcludedCIDRs: [x]\n" + gateway, []string{
			"spec.destinationCIDRs[4]: must be a text, is a number",
			`spec.destinationCIDRs[1]: "10.0.0.0/33": prefix length out of range`,
			`spec.destinationCIDRs[2]: "::ffff:10.0.0.0/104": is an IPv4 prefix written as IPv6, write it as IPv4`,
			`spec.destinationCIDRs[3]: "10.0.0.1": no '/'`,
			`spec.destinationCIDRs[5]: is empty`,
			`spec.excludedCIDRs[0]: "x": no '/'`,
		}, 1, []string{""}},
		{"no nodeSelector", selectors + destinations + "egressGateway: {interface: eth0}\n",
			[]string{"spec.egressGateway.nodeSelector: required"}, 1, []string{"spec.egressGateway.nodeSelector: required"}},
		{"interface and egressIP", selectors + destinations + "egressGateways: [{nodeSelector: {}, interface: eth0, egressIP: 192.0.2.1}, {nodeSelector: {}, egressIP: 192.0.2.x}, {nodeSelector: {}}]\n",
			[]string{"spec.egressGateways[0].interface: excludes egressIP", `spec.egressGateways[1].egressIP: "192.0.2.x": unexpected character (at "x")`}, 1,
			[]string{"spec.egressGateways[0].interface: excludes egressIP", `spec.egressGateways[1].egressIP: "192.0.2.x": unexpected character (at "x")`, ""}},
		{"gateways of a wrong type", selectors + destinations + "egressGateways: eth0\n" + gateway,
			[]string{"spec.egressGateways: must be a list, is a text"}, 1, []string{"spec.egressGateways: must be a list, is a text"}},
		{"gateway of a wrong type", selectors + destinations + "egressGateway: eth0\n",
			[]string{"spec.egressGateway: must be an object, is a text"}, 1, []string{"spec.egressGateway: must be an object, is a text"}},
		{"spec of a wrong type", "[]", []string{"spec: must be an object, is a list"}, 0, []string{"spec: must be an object, is a list"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := decodePolicy(t, test.spec)
			require.Equal(t, test.errors, errorTexts(p.Errors))
			require.Len(t, p.Selectors, test.selectors)
			var gateways []string
			for _, g := range p.Gateways {
				gateways = append(gateways, g.Error)
			}
			require.Equal(t, test.gateways, gateways)
		})
	}
}

func TestEgressPolicyTooManyGateways(t *testing.T) {
	spec := "selectors: [{podSelector: {}}]\ndestinationCIDRs: [0.0.0.0/0]\negressGateways:\n"
	for i := range 65 {
		spec += fmt.Sprintf("- {nodeSelector: {matchLabels: {n: n%d}}}\n", i)
	}
	p := decodePolicy(t, spec)
	require.Len(t, p.Gateways, 64)
	require.Empty(t, p.Gateways[63].Error)
	require.Equal(t, []string{"spec.egressGateways: has 65 items, of which the first 64 are used"}, errorTexts(p.Errors))
}

// A policy that names a pool has its address from there, for gateways that name none.
func TestEgressPolicyOfPool(t *testing.T) {
	for _, c := range []struct{ pool, gateways, want, errors string }{
		{"p", `[{"nodeSelector":{}},{"nodeSelector":{"matchLabels":{"a":"b"}}}]`,
			"nodes() pool p | nodes(a=b) pool p", ""},
		{"p", `[{"nodeSelector":{}},{"nodeSelector":{},"egressIP":"192.0.2.1"}]`,
			"nodes() invalid: metadata.annotations[sluice.net/egress-ip-pool]: excludes egressIP and " +
				"interface of gateways | nodes() ip 192.0.2.1 invalid: metadata.annotations" +
				"[sluice.net/egress-ip-pool]: excludes egressIP and interface of gateways",
			"metadata.annotations[sluice.net/egress-ip-pool]: excludes egressIP"},
		{"p", `[{"nodeSelector":{},"interface":"eth0"}]`, "nodes() interface eth0 invalid",
			"metadata.annotations[sluice.net/egress-ip-pool]: excludes egressIP"},
		{"a/b", `[{"nodeSelector":{}}]`, "nodes() invalid",
			`metadata.annotations[sluice.net/egress-ip-pool]: "a/b": is no name of an EgressIPPool`},
		{"p", `[{}]`, "nodes() invalid: spec.egressGateways[0].nodeSelector: required",
			"spec.egressGateways[0].nodeSelector: required"},
	} {
		o, err := egressPolicyKind().Decode([]byte(`{"apiVersion":"cilium.io/v2",
			"kind":"CiliumEgressGatewayPolicy","metadata":{"name":"a","annotations":{
			"sluice.net/egress-ip-pool":"` + c.pool + `"}},"spec":{"selectors":[{"podSelector":{}}],
			"destinationCIDRs":["0.0.0.0/0"],"egressGateways":` + c.gateways + `}}`))
		require.NoError(t, err)
		p := o.rows[0].(*tables.EgressPolicy)
		require.Contains(t, p.TableRow()[4], c.want)
		require.Contains(t, fieldErrors(p.Errors).String(), c.errors)
		require.Equal(t, c.errors == "", len(p.Errors) == 0, p.Errors)
	}
}

// Limits of bandwidth are in annotations. One with a mistake is named, and is none.
func TestEgressPolicyBandwidth(t *testing.T) {
	const all, each = "metadata.annotations[sluice.net/bandwidth]: ",
		"metadata.annotations[sluice.net/bandwidth-per-pod]: "
	for _, test := range []struct {
		annotations    string
		all, each      tables.Bandwidth
		errors, column string
	}{
		{annotations: "{other: 7k}", column: "-"},
		{annotations: "{sluice.net/bandwidth: ''}", column: "-"},
		{annotations: "{sluice.net/bandwidth: 100M}", all: 100e6, column: "100M"},
		{annotations: "{sluice.net/bandwidth-per-pod: '2500000'}", each: 25e5,
			column: "2500k per pod"},
		{annotations: "{sluice.net/bandwidth: 1T, sluice.net/bandwidth-per-pod: 1.5G}",
			all: 1e12, each: 15e8, column: "1T, 1500M per pod"},
		{annotations: "{sluice.net/bandwidth: 1k, sluice.net/bandwidth-per-pod: 999}", all: 1e3,
			errors: "metadata.annotations.sluice.net/bandwidth-per-pod: must be a text, is a number",
			column: "1k"},
		{annotations: "{sluice.net/bandwidth: 100Mbit, sluice.net/bandwidth-per-pod: 10M}",
			errors: all + `"100Mbit": is no number of bits a second as 100M or 1.5G`,
			each:   1e7, column: "10M per pod"},
		{annotations: "{sluice.net/bandwidth-per-pod: '999'}",
			errors: each + `"999": must be from 1k to 1T bits a second`, column: "-"},
		{annotations: "{sluice.net/bandwidth: '1001G'}",
			errors: all + `"1001G": must be from 1k to 1T bits a second`, column: "-"},
	} {

		p := decodeOne[*tables.EgressPolicy](t, egressPolicyKind(), "metadata: {name: p, annotations: "+
			test.annotations+"}\nspec: {selectors: [{podSelector: {}}], destinationCIDRs: [0.0.0.0/0], "+
			"egressGateway: {nodeSelector: {}}}")
		require.Equal(t, test.errors, strings.Join(errorTexts(p.Errors), "; "), test.annotations)
		require.Equal(t, test.all, p.Bandwidth, test.annotations)
		require.Equal(t, test.each, p.PodBandwidth, test.annotations)
		require.Equal(t, test.column, p.TableRow()[5], test.annotations)
	}
}

// No text but a number with a unit is a bandwidth.
func TestBandwidths(t *testing.T) {
	for _, text := range []string{
		"-5M", "+5M", "1e999999999", "1e6", "0x10M", "inf", "NaN", ".", "1.2.3M", "M", " 5M", "5 M", "5m",
		"5K", "5Mi", strings.Repeat("9", 1000), "0", "0.5k", "1.1T",
	} {
		var errs fieldErrors
		require.Zero(t, bandwidth("a", text, &errs), text)
		require.Len(t, errs, 1, text)
		require.Contains(t, errs[0].Error(), "bits a second", text)
	}
}
