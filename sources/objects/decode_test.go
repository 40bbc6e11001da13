// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/tables"
)

// decode decodes the YAML of an object with a name, and returns its rows.
func decode[Row any](t testing.TB, k *Kind, text string) []Row {
	t.Helper()
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	require.NoError(t, err)
	o, err := k.Decode(data)
	require.NoError(t, err)
	require.NoError(t, o.Err)
	rows := make([]Row, len(o.rows))
	for i, row := range o.rows {
		rows[i] = row.(Row)
	}
	return rows
}

func decodeOne[Row any](t testing.TB, k *Kind, text string) Row {
	t.Helper()
	rows := decode[Row](t, k, text)
	require.Len(t, rows, 1)
	return rows[0]
}

func errorTexts(errs []tables.FieldError) []string {
	var texts []string
	for _, e := range errs {
		texts = append(texts, e.Error())
	}
	return texts
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

const webPod = `
metadata:
  name: web-1
  namespace: shop
  uid: u1
  creationTimestamp: 2025-03-01T12:00:00+02:00
  labels:
    app: web
    pod-template-hash: 5d4f
    controller-revision-hash: x
    statefulset.kubernetes.io/pod-name: web-1
    batch.kubernetes.io/job-completion-index: "3"
    io.kubernetes.pod.namespace: forged
    io.cilium.k8s.namespace.labels.team: forged
    job-name: nightly
spec:
  nodeName: node-1
  serviceAccountName: web
  containers:
  - ports:
    - {name: http, containerPort: 8080}
    - {name: dns, containerPort: 53, protocol: UDP}
    - {containerPort: 9000}
  initContainers:
  - {restartPolicy: Always, ports: [{name: sctp, containerPort: 38412, protocol: SCTP}, {name: http, containerPort: 1}]}
  - {ports: [{name: once, containerPort: 2}]}
status:
  phase: Running
  podIP: 10.0.0.1
  podIPs: [{ip: "::ffff:10.0.0.1"}, {ip: "fd00::1"}]
`

func TestPod(t *testing.T) {
	e := decodeOne[*tables.Endpoint](t, podKind(), webPod)
	want := &tables.Endpoint{
		Name: tables.Name{Namespace: "shop", Name: "web-1"}, UID: "u1", Node: "node-1",
		Addrs: addrs("10.0.0.1", "fd00::1"),
		LabelSet: tables.NewLabelSet("shop", "web", labels.Set{
			"app": "web", "job-name": "nightly",
			"statefulset.kubernetes.io/pod-name": "web-1", "batch.kubernetes.io/job-completion-index": "3",
		}, []tables.NamedPort{
			{Name: "dns", Protocol: 17, Port: 53}, {Name: "http", Protocol: 6, Port: 1}, {Name: "http", Protocol: 6, Port: 8080},
			{Name: "sctp", Protocol: 132, Port: 38412},
		}),
		Created: time.Date(2025, 3, 1, 10, 0, 0, 0, time.UTC),
	}
	require.Equal(t, want, e)
}

func TestPodIsEndpoint(t *testing.T) {
	for _, test := range []struct {
		name, text string
		addrs      []netip.Addr
		endpoint   bool
	}{
		{"running", "status: {phase: Running, podIP: 10.0.0.1}", addrs("10.0.0.1"), true},
		{"no address yet", "status: {phase: Pending}", nil, true},
		{"host network", "spec: {hostNetwork: true}\nstatus: {podIP: 10.0.0.1}", nil, false},
		{"succeeded", "status: {phase: Succeeded, podIP: 10.0.0.1}", nil, false},
		{"failed", "status: {phase: Failed, podIP: 10.0.0.1}", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			rows := decode[*tables.Endpoint](t, podKind(), "metadata: {name: a, namespace: b, deletionTimestamp: 2025-03-01T12:00:00Z}\n"+test.text)
			if !test.endpoint {
				require.Empty(t, rows)
				return
			}
			require.Len(t, rows, 1)
			require.Equal(t, test.addrs, rows[0].Addrs)
			require.Empty(t, rows[0].Errors)
		})
	}
}

func TestPodErrors(t *testing.T) {
	e := decodeOne[*tables.Endpoint](t, podKind(), `
metadata: {name: a, namespace: b, creationTimestamp: yesterday, labels: {app: web, tier: 3}}
spec:
  nodeName: [node-1]
  containers:
  - ports: [{name: a, containerPort: 70000}, {name: b, containerPort: 1, protocol: ICMP}, {name: c, containerPort: many}, {name: d, containerPort: 4}]
status: {podIPs: [{ip: 10.0.0.300}, {ip: 0.0.0.0}, {ip: fe80::1%eth0}, {ip: 10.0.0.1}]}
`)
	require.Equal(t, tables.Labels{{Key: "app", Value: "web"}}, e.LabelSet.Labels)
	require.Equal(t, addrs("10.0.0.1"), e.Addrs)
	require.Equal(t, []tables.NamedPort{{Name: "d", Protocol: 6, Port: 4}}, e.LabelSet.NamedPorts)
	require.ElementsMatch(t, []string{
		`metadata.labels.tier: must be a text, is a number`,
		`spec.nodeName: must be a text, is a list`,
		`spec.containers[0].ports[2].containerPort: must be a number, is a text`,
		`metadata.creationTimestamp: "yesterday": is no time as in 2006-01-02T15:04:05Z`,
		`status.podIPs[0].ip: "10.0.0.300": IPv4 field has value >255`,
		`status.podIPs[1].ip: "0.0.0.0": is not the address of a host`,
		`status.podIPs[2].ip: "fe80::1%eth0": has a zone`,
		`spec.containers[0].ports[0]: 70000 is no port number`,
		`spec.containers[0].ports[1].protocol: "ICMP": must be TCP, UDP or SCTP`,
		`spec.containers[0].ports[2]: 0 is no port number`,
	}, errorTexts(e.Errors))
}

// Pods with the same labels share them, however many there are.
func TestPodsShareLabels(t *testing.T) {
	k := podKind()
	a := decodeOne[*tables.Endpoint](t, k, webPod)
	b := decodeOne[*tables.Endpoint](t, k, strings.Replace(webPod, "name: web-1", "name: web-2", 1))
	require.Same(t, a.LabelSet, b.LabelSet)
}

// Label sets that no pod has any more are not kept, however many there were.
func TestInternerKeepsNoneAlive(t *testing.T) {
	var n Interner
	labeled := func(i int) *tables.LabelSet {
		return n.LabelSet("ns", "", labels.Set{"i": fmt.Sprint(i)}, nil)
	}
	kept := labeled(0)
	for i := range 10_000 {
		labeled(i)
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.sets) == 1
	}, time.Minute, time.Millisecond)
	require.Same(t, kept, labeled(0))
}

func TestNames(t *testing.T) {
	for text, want := range map[string]string{
		"metadata: {namespace: b}":                           "metadata.name: required",
		"metadata: {name: a/b}":                              `metadata.name: "a/b" is no name`,
		"metadata: {name: a, namespace: b/c}":                `metadata.namespace: "b/c" is no name`,
		"metadata: {name: " + strings.Repeat("a", 254) + "}": `metadata.name: longer than 253 bytes`,
		"metadata: {name: 7}":                                "metadata.name: required",
		"metadata: [a]":                                      "metadata.name: required",
		"metadata: {name: a}":                                "",
		"metadata: {name: a}\nstatus: {podIPs: {}}":          "",
		"metadata: {name: a, annotations: {x: [1, 2]}":       "",
	} {
		data, err := yaml.YAMLToJSON([]byte(strings.Replace(text, "[1, 2]}", "[1, 2]}}", 1)))
		require.NoError(t, err)
		o, err := podKind().Decode(data)
		require.NoError(t, err)
		if want == "" {
			require.NoError(t, o.Err)
			require.Equal(t, tables.Name{Namespace: "default", Name: "a"}, o.Name)
			continue
		}
		require.EqualError(t, o.Err, want)
		require.Empty(t, o.rows)
	}
	for _, data := range []string{"", "{", "[]", "7", `"x"`, `{"metadata":{"name":"a"}} x`} {
		_, err := podKind().Decode([]byte(data))
		require.Error(t, err, data)
	}
}

func TestNamespace(t *testing.T) {
	require.Equal(t,
		&tables.Namespace{Name: "shop", Labels: labels.Set{"team": "a", "kubernetes.io/metadata.name": "shop"}},
		decodeOne[*tables.Namespace](t, namespaceKind(), "metadata: {name: shop, labels: {team: a}}"))
}

func TestNode(t *testing.T) {
	n := decodeOne[*tables.Node](t, nodeKind(), `
metadata:
  name: node-1
  labels: {zone: a}
  annotations:
    projectcalico.org/IPv4VXLANTunnelAddr: 10.1.7.0
    projectcalico.org/IPv6WireguardInterfaceAddr: none
spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, "fd00:1::/64", 10.1.0.0/99]}
status:
  addresses:
  - {type: InternalIP, address: 192.0.2.1}
  - {type: InternalIP, address: "2001:db8::1"}
  - {type: ExternalIP, address: 198.51.100.1}
  - {type: Hostname, address: node-1}
  conditions: [{type: MemoryPressure, status: "False"}, {type: Ready, status: "True"}]
`)
	require.Equal(t, &tables.Node{
		Name: "node-1", Labels: labels.Set{"zone": "a"}, Ready: true,
		InternalIPs: addrs("192.0.2.1", "2001:db8::1"), OtherIPs: addrs("198.51.100.1"),
		TunnelIPs: addrs("10.1.7.0"),
		PodCIDRs:  prefixes("10.1.0.0/24", "fd00:1::/64"),
		Errors: []tables.FieldError{
			{
				Field:  "metadata.annotations[projectcalico.org/IPv6WireguardInterfaceAddr]",
				Reason: `"none": unable to parse IP`,
			},
			{Field: "spec.podCIDRs[2]", Reason: `"10.1.0.0/99": prefix length out of range`},
		},
	}, n)
	require.False(t, decodeOne[*tables.Node](t, nodeKind(),
		`{metadata: {name: node-2}, status: {conditions: [{type: Ready, status: Unknown}]}}`).Ready)
	for manifest, draining := range map[string]bool{
		"metadata: {name: a}\nspec: {unschedulable: true}":                           true,
		"metadata: {name: a}\nspec: {unschedulable: false}":                          false,
		`metadata: {name: a, annotations: {` + tables.DrainAnnotation + `: "true"}}`: true,
		`metadata: {name: a, annotations: {` + tables.DrainAnnotation + `: ""}}`:     false,
	} {
		require.Equal(t, draining, decodeOne[*tables.Node](t, nodeKind(), manifest).Draining, manifest)
	}
}

func TestService(t *testing.T) {
	s := decodeOne[*tables.Service](t, serviceKind(), `
metadata: {name: web, namespace: shop, labels: {tier: front}}
spec: {selector: {app: web}, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd00:96::10"], externalIPs: [198.51.100.7]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.1}, {hostname: lb.example}]}}
`)
	require.Equal(t, addrs("10.96.0.10", "fd00:96::10"), s.Addrs)
	require.Equal(t, addrs("198.51.100.7"), s.ExternalIPs)
	require.Equal(t, addrs("203.0.113.1"), s.LoadBalancerIPs)
	require.False(t, s.NotProxied)
	require.Equal(t, labels.Set{"tier": "front"}, s.Labels)
	require.Equal(t, labels.Set{"app": "web"}, s.Selector)
	require.Empty(t, s.Errors)
	require.Empty(t, decodeOne[*tables.Service](t, serviceKind(), `{metadata: {name: h}, spec: {clusterIP: None, clusterIPs: [None]}}`).Addrs)
	require.Empty(t, decodeOne[*tables.Service](t, serviceKind(), `{metadata: {name: h}, spec: {type: ExternalName, selector: {app: web}}}`).Selector)
	require.Empty(t, decodeOne[*tables.Service](t, serviceKind(), `{metadata: {name: h}, spec: {type: ExternalName, externalIPs: [203.0.113.10]}}`).Addrs)
}

func TestServicePorts(t *testing.T) {
	s := decodeOne[*tables.Service](t, serviceKind(), `
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports:
  - {name: http, protocol: TCP, port: 80, targetPort: web}
  - {name: dns, protocol: UDP, port: 53, targetPort: 5353}
  - {port: 443}
  - {name: zero, protocol: SCTP, port: 9, targetPort: 0}
  - {name: empty, port: 10, targetPort: ""}
`)
	require.Equal(t, []tables.ServicePort{
		{Name: "http", Protocol: 6, Port: 80, TargetName: "web"}, {Name: "dns", Protocol: 17, Port: 53, TargetPort: 5353},
		{Protocol: 6, Port: 443, TargetPort: 443}, {Name: "zero", Protocol: 132, Port: 9, TargetPort: 9}, {Name: "empty", Protocol: 6, Port: 10, TargetPort: 10},
	}, s.Ports)
	require.Empty(t, s.Errors)
	require.Equal(t, "http=80/tcp to web, dns=53/udp to 5353, 443/tcp, zero=9/sctp, empty=10/tcp", s.TableRow()[5])
	require.Empty(t, decodeOne[*tables.Service](t, serviceKind(), `{metadata: {name: h}, spec: {type: ExternalName, ports: [{port: 0}]}}`).Ports)
}

// A port with a mistake is left out; the service and its other ports are not.
func TestServicePortErrors(t *testing.T) {
	s := decodeOne[*tables.Service](t, serviceKind(), `
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports:
  - {port: 0}
  - {port: 80, protocol: ICMP}
  - {port: 81, targetPort: 65536}
  - {port: 82, targetPort: [a]}
  - {port: many}
  - 83
  - {port: 84, targetPort: 8084}
`)
	require.Equal(t, addrs("10.96.0.10"), s.Addrs)
	require.Equal(t, []tables.ServicePort{{Protocol: 6, Port: 84, TargetPort: 8084}}, s.Ports)
	require.ElementsMatch(t, []string{
		"spec.ports[0].port: 0 is no port number", `spec.ports[1].protocol: "ICMP": must be TCP, UDP or SCTP`,
		"spec.ports[2].targetPort: 65536 is no port number", "spec.ports[3].targetPort: is neither a number nor a name",
		"spec.ports[4].port: must be a number, is a text", "spec.ports[5]: must be an object, is a number",
	}, errorTexts(s.Errors))
}

func TestServiceOfLabelsThatAreNotKept(t *testing.T) {
	s := decodeOne[*tables.Service](t, serviceKind(), "{metadata: {name: web}, spec: {selector: {app: web, pod-template-hash: x}}}")
	require.Equal(t, labels.Set{"app": "web", "pod-template-hash": "x"}, s.Selector, "an allow may not come to mean more pods")
	require.Equal(t, []string{"pod-template-hash"}, s.Churning)
	require.Equal(t, labels.Set{"app": "web"}, s.Kept())
	require.Equal(t, []tables.FieldError{{Field: "spec.selector", Reason: "label pod-template-hash changes with each rollout and cannot be selected on"}}, s.Errors)
}

func TestEndpointSlice(t *testing.T) {
	s := decodeOne[*tables.BackendSlice](t, endpointSliceKind(), `
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints:
- addresses: [192.0.2.1]
- {addresses: [10.0.0.1], targetRef: {kind: Pod, name: web-1}}
- addresses: [bad]
`)
	require.Equal(t, tables.KubernetesAPIService, s.Service)
	require.Equal(t, addrs("192.0.2.1"), s.Addrs)
	require.Equal(t, []string{`endpoints[2].addresses[0]: "bad": unable to parse IP`}, errorTexts(s.Errors))
	require.Empty(t, decodeOne[*tables.BackendSlice](t, endpointSliceKind(),
		`{metadata: {name: f}, addressType: FQDN, endpoints: [{addresses: [a.example]}]}`).Errors)
}

// A slice that an agent wrote announces pods, and has no backends.
func TestEndpointSliceOfAgent(t *testing.T) {
	s := decodeOne[*tables.BackendSlice](t, endpointSliceKind(), `
metadata:
  name: sluice-n
  namespace: sluice-system
  labels: {endpointslice.kubernetes.io/managed-by: sluice.net}
  annotations: {sluice.net/status-addresses: '{"u": ["10.0.0.9", "fd00::9"]}'}
addressType: IPv4
endpoints:
- {addresses: [10.0.0.1], nodeName: node-1, targetRef: {kind: Pod, namespace: b, name: web-1, uid: u}}
- {addresses: [bad], nodeName: node-1, targetRef: {kind: Pod, namespace: b, name: web-2, uid: v}}
- {addresses: [192.0.2.1]}
ports: [{port: 80, protocol: TCP}]
`)
	require.Equal(t, []tables.PodAddrs{{Pod: tables.Name{Namespace: "b", Name: "web-1"}, UID: "u", Node: "node-1", Addrs: addrs("10.0.0.1"),
		StatusAddrs: addrs("10.0.0.9", "fd00::9")}}, s.Pods)
	require.Empty(t, s.Addrs)
	require.Empty(t, s.Ports)
	require.Equal(t, []string{`endpoints[1].addresses[0]: "bad": unable to parse IP`}, errorTexts(s.Errors))
}

func TestEndpointSlicePorts(t *testing.T) {
	s := decodeOne[*tables.BackendSlice](t, endpointSliceKind(), `
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: web-1}}, {addresses: [192.0.2.1]}]
ports:
- {name: http, protocol: TCP, port: 8080}
- {name: "", protocol: UDP, port: 53}
- {name: any, protocol: TCP}
- {name: bad, port: 70000}
- {name: worse, protocol: X, port: 1}
- {name: text, port: "1"}
`)
	require.Equal(t, []tables.BackendPort{{Name: "http", Protocol: 6, Port: 8080}, {Protocol: 17, Port: 53}}, s.Ports)
	require.Equal(t, addrs("192.0.2.1"), s.Addrs)
	require.ElementsMatch(t, []string{
		"ports[3].port: 70000 is no port number", `ports[4].protocol: "X": must be TCP, UDP or SCTP`, "ports[5].port: must be a number, is a text",
	}, errorTexts(s.Errors))
	require.Equal(t, "http=8080/tcp, 53/udp", s.TableRow()[3])
}
