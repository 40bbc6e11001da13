// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

func TestCiliumEndpoint(t *testing.T) {
	e := decodeOne[*tables.CiliumEndpoint](t, ciliumEndpointKind(), `
metadata: {name: web-1, namespace: shop, uid: u1}
status:
  identity: {id: 1234, labels: ["k8s:app=web"]}
  networking: {node: 192.0.2.1, addressing: [{ipv4: 10.0.0.1, ipv6: "fd00::1"}]}
  named-ports: [{name: http, port: 8080, protocol: TCP}, {name: http, port: 80, protocol: TCP}, {name: http, port: 80}]
`)
	require.Equal(t, &tables.CiliumEndpoint{
		Name: tables.Name{Namespace: "shop", Name: "web-1"}, UID: "u1", Identity: 1234,
		NodeIP: netip.MustParseAddr("192.0.2.1"), Addrs: addrs("10.0.0.1", "fd00::1"),
		NamedPorts: []tables.NamedPort{{Name: "http", Protocol: 6, Port: 80}, {Name: "http", Protocol: 6, Port: 8080}},
	}, e)
}

func TestCiliumEndpointErrors(t *testing.T) {
	for _, test := range []struct {
		status string
		errors []string
	}{
		{"{}", []string{"status.identity.id: required", "metadata.uid: required", "status.networking: required"}},
		{"{identity: {id: 5000000000}, networking: {}}", []string{"status.identity.id: 5000000000 is no identity",
			"metadata.uid: required", "status.networking.addressing: required", "status.networking.node: is empty"}},
		{"{identity: {id: 7}, networking: {node: n1, addressing: [{ipv4: x}]}}", []string{"metadata.uid: required",
			`status.networking.addressing[0].ipv4: "x": unable to parse IP`, `status.networking.node: "n1": unable to parse IP`}},
	} {
		e := decodeOne[*tables.CiliumEndpoint](t, ciliumEndpointKind(), "metadata: {name: a, namespace: b}\nstatus: "+test.status)
		require.Equal(t, test.errors, errorTexts(e.Errors))
		require.Empty(t, e.Addrs)
	}
}

func TestCiliumEndpointSlice(t *testing.T) {
	rows := decode[*tables.CiliumEndpoint](t, ciliumEndpointSliceKind(), `
metadata: {name: ces-1}
namespace: shop
endpoints:
- {name: a, id: 10, networking: {node: 192.0.2.1, addressing: [{ipv4: 10.0.0.1}]}}
- {name: b, networking: {node: 192.0.2.1, addressing: [{ipv4: 10.0.0.2}]}}
- {id: 12}
- {name: a, id: 13}
`)
	require.Len(t, rows, 2)
	nameless := []string{"endpoints[2].name: no usable name", `endpoints[3].name: "a" is in the slice twice`}
	require.Equal(t, tables.Name{Namespace: "shop", Name: "a"}, rows[0].Name)
	require.Equal(t, "ces-1", rows[0].Slice)
	require.EqualValues(t, 10, rows[0].Identity)
	require.Equal(t, nameless, errorTexts(rows[0].Errors))
	require.Equal(t, append([]string{"endpoints[1].id: required"}, nameless...), errorTexts(rows[1].Errors))

	o, err := ciliumEndpointSliceKind().Decode([]byte(`{"metadata":{"name":"x"},"endpoints":[{"name":"a"}]}`))
	require.NoError(t, err)
	require.EqualError(t, o.Err, "namespace: required")
}

func TestCiliumIdentity(t *testing.T) {
	i := decodeOne[*tables.Identity](t, ciliumIdentityKind(), `
metadata: {name: "1234"}
security-labels:
  k8s:app: web
  k8s:io.kubernetes.pod.namespace: shop
  k8s:io.cilium.k8s.policy.serviceaccount: web
  k8s:io.cilium.k8s.policy.cluster: default
  k8s:io.cilium.k8s.namespace.labels.team: a
`)
	require.Equal(t, &tables.Identity{ID: 1234, Namespace: "shop", ServiceAccount: "web", Labels: labels.Set{"app": "web"}}, i)

	i = decodeOne[*tables.Identity](t, ciliumIdentityKind(), `{metadata: {name: "1"}, security-labels: {"reserved:host": "", app: web}}`)
	require.Equal(t, []string{
		`security-labels["app"]: is no label of a pod`,
		`security-labels["reserved:host"]: is no label of a pod`,
		`security-labels: no k8s:io.kubernetes.pod.namespace`,
	}, errorTexts(i.Errors))

	for _, name := range []string{"web", "0", "-1", "07", "99999999999"} {
		o, err := ciliumIdentityKind().Decode([]byte(`{"metadata":{"name":"` + name + `"}}`))
		require.NoError(t, err)
		require.ErrorContains(t, o.Err, "is no identity", name)
	}
}

func TestCiliumNode(t *testing.T) {
	n := decodeOne[*tables.CiliumNode](t, ciliumNodeKind(), `
metadata: {name: node-1}
spec: {addresses: [{type: InternalIP, ip: 192.0.2.1}, {type: CiliumInternalIP, ip: 10.0.0.99}, {type: X, ip: ""}]}
`)
	require.Equal(t, addrs("192.0.2.1", "10.0.0.99"), n.Addrs)
	require.Equal(t, []string{"spec.addresses[2].ip: is empty"}, errorTexts(n.Errors))
}
