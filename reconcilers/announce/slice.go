// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-net/sluice/tables"
)

const (
	// keep is how long a pod is announced at least, also after its status has come:
	// the watch of another agent may have the slice without it before that status.
	keep = 30 * time.Second

	// maxPods bounds a slice, of which the API takes 1000. Nodes have fewer pods.
	maxPods = 250
)

// slice is the EndpointSlice of one address family.
type slice struct {
	name   tables.Name
	family discoveryv1.AddressType

	said  map[types.UID]tables.PodAddrs // by pods, what it says as far as is known
	since map[types.UID]time.Time       // when they were announced first

	// failed is set while it is not known to be as it was last wanted: it is written
	// even if that is needed no more, so that health and the row tell of now.
	failed bool
}

func newSlice(
	namespace tables.AgentNamespace, node tables.LocalNode, family discoveryv1.AddressType,
) *slice {
	name := "sluice-" + node.Name + "-" + strings.ToLower(string(family))
	return &slice{
		name: tables.Name{Namespace: string(namespace), Name: name}, family: family,
		said: map[types.UID]tables.PodAddrs{}, since: map[types.UID]time.Time{},
	}
}

// written takes in what the slice says since it was written.
func (s *slice) written(pods []tables.PodAddrs, now time.Time) {
	since := s.since
	s.failed = false
	s.said, s.since = map[types.UID]tables.PodAddrs{}, map[types.UID]time.Time{}
	for _, p := range pods {
		uid := types.UID(p.UID)
		s.said[uid], s.since[uid] = p, now
		if at, found := since[uid]; found {
			s.since[uid] = at
		}
	}
}

// candidate is a pod that may be announced.
type candidate struct {
	tables.PodAddrs
	made  time.Time // its interface
	fresh bool      // its status has no address
}

// wanted returns what the slice shall say of this node's pods, and whether it has to
// be written for that: a new pod is missing, what it says of one is wrong, or a write
// has failed. Pods have the addresses of their interfaces here.
func (s *slice) wanted(local []*tables.Endpoint, now time.Time) (pods []tables.PodAddrs, due bool) {
	due = s.failed
	var candidates []candidate
	for _, e := range local {
		uid := types.UID(e.UID)
		if uid == "" {
			continue
		}
		c := candidate{made: e.Attached, fresh: !hasStatus(e), PodAddrs: tables.PodAddrs{
			Pod: e.Name, UID: e.UID, Node: e.Node, Addrs: s.of(e.Addrs),
		}}
		said, found := s.said[uid]
		switch {
		case c.fresh:
			due = due || found && !said.Equal(c.PodAddrs)
			if len(c.Addrs) > 0 {
				candidates = append(candidates, c)
			}
		case found && said.Equal(c.PodAddrs) && now.Before(s.since[uid].Add(keep)):
			candidates = append(candidates, c)
		}
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		if a.fresh != b.fresh {
			if a.fresh {
				return -1
			}
			return 1
		}
		return cmp.Or(b.made.Compare(a.made), cmp.Compare(a.Pod.String(), b.Pod.String()))
	})
	for _, c := range candidates[:min(len(candidates), maxPods)] {
		_, found := s.said[types.UID(c.UID)]
		due = due || !found
		pods = append(pods, c.PodAddrs)
	}
	return pods, due
}

// hasStatus reports whether the status of a pod has addresses: others know it by these.
func hasStatus(e *tables.Endpoint) bool {
	return len(e.StatusAddrs) > 0 || e.Attached.IsZero() && len(e.Addrs) > 0
}

// of returns the addresses that are of the family.
func (s *slice) of(addrs []netip.Addr) (out []netip.Addr) {
	for _, a := range addrs {
		if a.Is4() == (s.family == discoveryv1.AddressTypeIPv4) {
			out = append(out, a)
		}
	}
	return out
}

// manifest is the object: it goes when the Node does.
func (s *slice) manifest(node *tables.Node, pods []tables.PodAddrs) []byte {
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
	for _, p := range pods {
		e := discoveryv1.Endpoint{
			NodeName: &p.Node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Pod.Namespace, Name: p.Pod.Name,
				UID: types.UID(p.UID)},
		}
		for _, a := range p.Addrs {
			e.Addresses = append(e.Addresses, a.String())
		}
		object.Endpoints = append(object.Endpoints, e)
	}
	data, err := json.Marshal(object)
	if err != nil {
		panic(err) // of nothing but texts
	}
	return data
}
