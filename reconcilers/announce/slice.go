// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb/reconciler"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-net/sluice/tables"
)

const (
	// keep is for how long since its interface was made a pod stays announced after its
	// status has come: the watch of another agent may have the slice without the pod
	// before that status.
	keep = 30 * time.Second

	// maxPods bounds a slice, of which the API takes 1000. Nodes have fewer pods.
	maxPods = 250

	// maxAddrs bounds the node's own addresses: the API takes 100 of an endpoint.
	maxAddrs = 100
)

// announcement is what a slice says, of one family.
type announcement struct {
	pods  []tables.PodAddrs
	addrs []netip.Addr // of the node
}

// slice is the EndpointSlice of one address family.
type slice struct {
	name   tables.Name
	family discoveryv1.AddressType
}

func newSlice(
	namespace tables.AgentNamespace, node tables.LocalNode, family discoveryv1.AddressType,
) slice {
	name := "sluice-" + node.Name + "-" + strings.ToLower(string(family))
	return slice{name: tables.Name{Namespace: string(namespace), Name: name}, family: family}
}

// wanted returns what the slice shall say, and whether it has to be written for that: other nodes
// know a pod by other addresses than those of its interface, or the node has other addresses,
// or the last write has failed.
func (s slice) wanted(
	last *tables.PodAnnouncement, local present, now time.Time,
) (says announcement, due bool) {
	says.addrs = s.of(local.addrs)
	says.addrs = says.addrs[:min(len(says.addrs), maxAddrs)]
	said := map[string]tables.PodAddrs{} // by UID
	for _, p := range last.Pods {
		said[p.UID] = p
	}
	due = last.Status.Kind == reconciler.StatusKindError || !slices.Equal(last.Addrs, says.addrs)
	for _, e := range local.pods {
		if e.UID == "" {
			continue
		}
		before, found := said[e.UID]
		want := tables.PodAddrs{Pod: e.Name, UID: e.UID, Node: e.Node, Addrs: s.of(e.Addrs),
			StatusAddrs: e.InStatus()}
		room := len(says.pods) < maxPods
		switch {
		case room && !statusAgrees(e) && len(want.Addrs) > 0:
			due = due || !before.Equal(want)
			says.pods = append(says.pods, want)
		case found && before.Counts(e):
			due = true // the status alone is right
		case found && room && slices.Equal(before.Addrs, want.Addrs) && now.Sub(e.Attached) < keep:
			says.pods = append(says.pods, before)
		}
	}
	return says, due
}

// statusAgrees reports whether the status of a pod has no other addresses than its
// interface: other nodes know it rightly by them. The status may have fewer.
func statusAgrees(e *tables.Endpoint) bool {
	status := e.InStatus()
	for _, addr := range status {
		if !slices.Contains(e.Addrs, addr) {
			return false
		}
	}
	return len(status) > 0
}

// of returns the addresses that are of the family.
func (s slice) of(addrs []netip.Addr) (out []netip.Addr) {
	for _, a := range addrs {
		if a.Is4() == (s.family == discoveryv1.AddressTypeIPv4) {
			out = append(out, a)
		}
	}
	return out
}

// manifest is the object: it goes when the Node does.
func (s slice) manifest(node *tables.Node, says announcement) []byte {
	object := discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(),
			Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Name: s.name.Name, Namespace: s.name.Namespace,
			Labels: map[string]string{
				tables.LabelManagedBy: tables.ManagedByAgents,
				// kube-proxy leaves out what has either of them, depending on its version.
				corev1.IsHeadlessService:                   "",
				"service.kubernetes.io/service-proxy-name": "sluice",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name,
				UID: types.UID(node.UID)}},
		},
		AddressType: s.family, Endpoints: []discoveryv1.Endpoint{}, Ports: []discoveryv1.EndpointPort{},
	}
	ready := false
	status := map[string][]netip.Addr{}
	if len(says.addrs) > 0 {
		object.Endpoints = append(object.Endpoints, discoveryv1.Endpoint{
			NodeName: &node.Name, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Node", Name: node.Name, UID: types.UID(node.UID)},
			Addresses: texts(says.addrs),
		})
	}
	for _, p := range says.pods {
		if len(p.StatusAddrs) > 0 {
			status[p.UID] = p.StatusAddrs
		}
		e := discoveryv1.Endpoint{
			NodeName: &p.Node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Pod.Namespace, Name: p.Pod.Name,
				UID: types.UID(p.UID)},
		}
		e.Addresses = texts(p.Addrs)
		object.Endpoints = append(object.Endpoints, e)
	}
	if len(status) > 0 {
		object.Annotations = map[string]string{
			tables.AnnotationStatusAddrs: string(marshal(status)),
		}
	}
	return marshal(object)
}

func texts(addrs []netip.Addr) (texts []string) {
	for _, a := range addrs {
		texts = append(texts, a.String())
	}
	return texts
}

func marshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // of nothing but texts
	}
	return data
}
