// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/sluice-net/sluice/tables"
)

type marshaler interface{ Marshal() ([]byte, error) }

// protobufOf returns an object as an API server sends it.
func protobufOf(t testing.TB, kind string, o marshaler) []byte {
	t.Helper()
	raw, err := o.Marshal()
	require.NoError(t, err)
	return enveloped(t, kind, raw)
}

// enveloped returns the protobuf of an object or listing of a kind that comes in it.
func enveloped(t testing.TB, kind string, raw []byte) []byte {
	t.Helper()
	version := "v1"
	if k, known := ofAPI[strings.TrimSuffix(kind, "List")]; known {
		version = k.version
	}
	envelope, err := (&runtime.Unknown{
		TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind}, Raw: raw,
	}).Marshal()
	require.NoError(t, err)
	return append([]byte("k8s\x00"), envelope...)
}

// ofAPI are the kinds that come in protobuf: what they are decoded into, and the API's types.
var ofAPI = map[string]struct {
	own, object any
	version     string
}{
	"Pod":           {&pod{}, &corev1.Pod{}, "v1"},
	"Namespace":     {&namespace{}, &corev1.Namespace{}, "v1"},
	"Node":          {&node{}, &corev1.Node{}, "v1"},
	"Service":       {&service{}, &corev1.Service{}, "v1"},
	"EndpointSlice": {&endpointSlice{}, &discoveryv1.EndpointSlice{}, "discovery.k8s.io/v1"},
	"NetworkPolicy": {&kubernetesPolicy{}, &networkingv1.NetworkPolicy{}, "networking.k8s.io/v1"},
	"ConfigMap":     {&configMap{}, &corev1.ConfigMap{}, "v1"},
}

// kindsOfTests are the kinds that tests find by their names.
func kindsOfTests() []*Kind {
	return append(Kinds(EndpointsKubernetes), EgressVotersKind("agents"))
}

// Each field that is read has the number that it has in the API's types.
func TestProtobufNumbers(t *testing.T) {
	count := 0
	for _, k := range kindsOfTests() {
		types, known := ofAPI[k.Kind]
		require.Equal(t, known, k.Protobuf, k.Kind)
		if known {
			count++
			sameNumbers(t, k.Kind, reflect.TypeOf(types.own).Elem(), reflect.TypeOf(types.object).Elem())
		}
	}
	require.Equal(t, len(ofAPI), count)
	sameNumbers(t, "list", reflect.TypeFor[listOf[pod]](), reflect.TypeFor[corev1.PodList]())
}

func sameNumbers(t *testing.T, path string, own, of reflect.Type) {
	for f := range own.Fields() {
		if f.Anonymous {
			sameNumbers(t, path, f.Type, of)
			continue
		}
		name := f.Tag.Get("json")
		theirs, found := fieldOfJSON(of, name)
		require.True(t, found, "%s.%s", path, name)
		if name == "kind" && path != "EndpointSlice.endpoints.targetRef" {
			continue // the envelope has it
		}
		parts, wanted := strings.Split(f.Tag.Get("protobuf"), ","),
			strings.Split(theirs.Tag.Get("protobuf"), ",")
		require.GreaterOrEqual(t, len(parts), 2, "%s.%s has no number", path, name)
		require.Equal(t, wanted[1], parts[1], "%s.%s", path, name)
		mine, their := element(f.Type), element(theirs.Type)
		switch {
		case their == reflect.TypeFor[metav1.Time]():
			require.Equal(t, "time", parts[2], "%s.%s", path, name)
		case their == reflect.TypeFor[intstr.IntOrString]():
			require.Equal(t, reflect.Interface, mine.Kind(), "%s.%s", path, name)
		case their.Kind() == reflect.Map && mine.Kind() == reflect.Struct:
			require.Equal(t, "map", parts[2], "%s.%s", path, name)
		case mine.Kind() == reflect.Struct && mine != their:
			sameNumbers(t, path+"."+name, mine, their)
		}
	}
}

func fieldOfJSON(of reflect.Type, name string) (reflect.StructField, bool) {
	for f := range of.Fields() {
		if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key == name {
			return f, true
		} else if f.Anonymous && key == "" {
			if inner, found := fieldOfJSON(f.Type, name); found {
				return inner, true
			}
		}
	}
	return reflect.StructField{}, false
}

// element is the type that a list has items of, or that a pointer leads to.
func element(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// An object says the same in protobuf as in JSON, alone and in a listing.
func TestProtobufIsAsJSON(t *testing.T) {
	for _, text := range []string{
		"kind: Pod" + webPod,
		"kind: Pod\nmetadata: {name: a, namespace: b, resourceVersion: '7', annotations: {k8s.io/initial-events-end: 'true', c: d}}",
		`kind: Pod
metadata: {name: a, namespace: b}
spec: {hostNetwork: true}
status: {phase: Succeeded}`,
		`kind: Pod
metadata: {name: a, namespace: b, creationTimestamp: "2025-03-01T12:00:00+02:00"}
spec:
  initContainers: [{name: s, restartPolicy: Always, ports: [{name: metrics, containerPort: 9, protocol: UDP}]}]
status: {podIP: 10.0.0.1}`,
		"kind: Namespace\nmetadata: {name: a, labels: {team: x}}",
		`kind: Node
metadata: {name: a, uid: u, labels: {zone: a}, annotations: {sluice.net/drain-gateway: "x"}}
spec: {podCIDR: 10.0.0.0/24, unschedulable: true, podCIDRs: [10.0.0.0/24, "fd00::/64"], taints: [{key: a, effect: NoSchedule}]}
status:
  addresses: [{type: InternalIP, address: 192.168.0.1}, {type: ExternalIP, address: 192.0.2.1}, {type: Hostname, address: a}]
  conditions: [{type: Ready, status: "True", lastHeartbeatTime: "2025-03-01T12:00:00Z", lastTransitionTime: "2025-03-01T11:00:00Z"}]`,
		`kind: Service
metadata: {name: a, namespace: b, labels: {c: d}}
spec:
  type: LoadBalancer
  selector: {app: web}
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, "fd00::1"]
  externalIPs: [192.0.2.1]
  ports: [{name: http, protocol: TCP, port: 80, targetPort: web}, {name: x, protocol: UDP, port: 53, targetPort: 5353}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}}`,
		`kind: EndpointSlice
metadata: {name: a, namespace: b, labels: {kubernetes.io/service-name: s}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1, 192.0.2.2], conditions: {ready: true}}, {addresses: [10.0.0.1], targetRef: {kind: Pod, name: p}}]
ports: [{name: http, protocol: TCP, port: 80}, {name: none, protocol: TCP}]`,
		`kind: EndpointSlice
metadata: {name: a, namespace: b, labels: {endpointslice.kubernetes.io/managed-by: sluice.net}}
addressType: IPv6
endpoints: [{addresses: ["fd00::1"], nodeName: node-1, targetRef: {kind: Pod, namespace: b, name: p, uid: u}}]`,
		`kind: NetworkPolicy
metadata: {name: a, namespace: b, generation: 3, uid: u}
spec:
  podSelector: {matchLabels: {app: web}, matchExpressions: [{key: tier, operator: In, values: [x, y]}]}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{podSelector: {}}, {namespaceSelector: {matchLabels: {team: x}}, podSelector: {matchLabels: {a: b}}}]
    ports: [{protocol: TCP, port: 80}, {protocol: UDP, port: 1000, endPort: 2000}, {port: http}]
  - {}
  egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]`,
		`kind: ConfigMap
metadata: {name: sluice-egress-voters, namespace: agents}
data: {other: a, voters: '{"generation": 3, "voters": [{"node": "a", "addr": "10.0.0.1"}]}'}`,
		"kind: ConfigMap\nmetadata: {name: sluice-egress-voters, namespace: agents}\ndata: {other: a}",
	} {
		var header metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal([]byte(text), &header))
		k := kindNamed(t, header.Kind)
		object := reflect.New(reflect.TypeOf(ofAPI[k.Kind].object).Elem()).Interface()
		require.NoError(t, yaml.UnmarshalStrict([]byte(text), object), text)
		asJSON, err := json.Marshal(object)
		require.NoError(t, err)
		want, err := k.Decode(asJSON)
		require.NoError(t, err)
		got, err := k.Decode(protobufOf(t, k.Kind, object.(marshaler)))
		require.NoError(t, err)
		require.Equal(t, want, got, text)
		want.Kind = "" // in a list

		raw, err := object.(marshaler).Marshal()
		require.NoError(t, err)
		list, err := k.DecodeList(enveloped(t, k.Kind+"List", listMessage("12", "next", raw, raw)))
		require.NoError(t, err)
		require.Equal(t, &List{ResourceVersion: "12", Continue: "next", Objects: []*Object{want, want}},
			list)
	}
}

func kindNamed(t *testing.T, name string) *Kind {
	for _, k := range kindsOfTests() {
		if k.Kind == name {
			return k
		}
	}
	t.Fatal("no kind " + name)
	return nil
}

// listMessage returns the protobuf of a listing.
func listMessage(resourceVersion, next string, items ...[]byte) []byte {
	list := appendField(nil, 1,
		appendField(appendField(nil, 2, []byte(resourceVersion)), 3, []byte(next)))
	for _, item := range items {
		list = appendField(list, 2, item)
	}
	return list
}

func appendField(to []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
}

// What a newer API server says of a policy, and this agent does not know, is a mistake as in
// JSON: an allow is narrower by it. Of other kinds it is skipped.
func TestProtobufUnknownFields(t *testing.T) {
	peer, err := (&networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}).Marshal()
	require.NoError(t, err)
	metadata, err := (&metav1.ObjectMeta{Name: "a", Namespace: "b"}).Marshal()
	require.NoError(t, err)
	policy := func(item []byte) *tables.NetworkPolicy {
		spec := appendField(appendField(nil, 1, nil), 2, item)
		o, err := networkPolicyKind().Decode(enveloped(t, "NetworkPolicy",
			appendField(appendField(nil, 1, metadata), 2, spec)))
		require.NoError(t, err)
		require.NoError(t, o.Err)
		return o.rows[0].(*tables.NetworkPolicy)
	}
	item := appendField(nil, 2, peer)
	require.Empty(t, policy(item).Errors)
	require.Equal(t, "default deny; allow pods(io.kubernetes.pod.namespace=b)",
		policy(item).Rules[0].Ingress.String())

	p := policy(protowire.AppendVarint(protowire.AppendTag(item, 9, protowire.VarintType), 1))
	require.Equal(t, []string{"spec.ingress[0].#9: no such field"}, errorTexts(p.Errors))
	require.Equal(t, "default deny; allow none", p.Rules[0].Ingress.String())

	p = policy(appendField(item, 2, appendField(peer, 77, []byte("x"))))
	require.Equal(t, []string{"spec.ingress[0].from[1].#77: no such field"}, errorTexts(p.Errors))
	require.Equal(t, "default deny; allow pods(io.kubernetes.pod.namespace=b)",
		p.Rules[0].Ingress.String())

	o, err := namespaceKind().Decode(enveloped(t, "Namespace",
		appendField(appendField(nil, 1, metadata), 99, []byte("x"))))
	require.NoError(t, err)
	require.NoError(t, o.Err)
}

func TestProtobufErrors(t *testing.T) {
	status := protobufOf(t, "Status", &metav1.Status{Code: 410})
	o, err := podKind().Decode(status)
	require.NoError(t, err)
	require.Equal(t, "Status", o.Kind)
	require.EqualError(t, o.Err, "is of kind Status, not Pod")

	for name, data := range map[string][]byte{
		"no envelope":   []byte("k8s\x00\xff"),
		"no object":     enveloped(t, "Pod", []byte{0xff}),
		"cut off":       enveloped(t, "Pod", []byte{0x0a, 0x7f}),
		"another type":  enveloped(t, "Pod", protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)),
		"no number":     enveloped(t, "Pod", appendField(nil, 2, appendField(nil, 11, []byte("x")))),
		"of fixed size": enveloped(t, "Pod", protowire.AppendFixed32(protowire.AppendTag(nil, 1, protowire.Fixed32Type), 1)),
	} {
		_, err := podKind().Decode(data)
		require.Error(t, err, name)
	}
	_, err = podKind().DecodeList(enveloped(t, "PodList", appendField(nil, 2, []byte{0xff})))
	require.ErrorContains(t, err, "items[0]: parse protobuf: ")
}
