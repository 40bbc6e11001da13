// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-net/sluice/tables"
)

// object is what every kind of object begins with.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name              string            `json:"name" protobuf:"bytes,1"`
		Namespace         string            `json:"namespace" protobuf:"bytes,3"`
		UID               string            `json:"uid" protobuf:"bytes,5"`
		ResourceVersion   string            `json:"resourceVersion" protobuf:"bytes,6"`
		CreationTimestamp string            `json:"creationTimestamp" protobuf:"bytes,8,time"`
		Generation        int64             `json:"generation" protobuf:"varint,7"`
		Labels            map[string]string `json:"labels" protobuf:"bytes,11"`
		Annotations       struct {
			InitialEventsEnd string `json:"k8s.io/initial-events-end"`
			ConfigMirror     string `json:"kubernetes.io/config.mirror"` // of a static pod
			StatusAddrs      string `json:"sluice.net/status-addresses"` // announced

			DrainGateway string `json:"sluice.net/drain-gateway"`  // tables.DrainAnnotation
			EgressIPPool string `json:"sluice.net/egress-ip-pool"` // tables.PoolAnnotation

			Bandwidth    string `json:"sluice.net/bandwidth"`         // tables.BandwidthAnnotation
			PodBandwidth string `json:"sluice.net/bandwidth-per-pod"` // tables.PodBandwidthAnnotation

			// Addresses of a node's tunnels, which Calico's node agent sets on Nodes
			// (libcalico-go, lib/backend/k8s/resources/node.go).
			CalicoIPIP4      string `json:"projectcalico.org/IPv4IPIPTunnelAddr"`
			CalicoVXLAN4     string `json:"projectcalico.org/IPv4VXLANTunnelAddr"`
			CalicoVXLAN6     string `json:"projectcalico.org/IPv6VXLANTunnelAddr"`
			CalicoWireGuard4 string `json:"projectcalico.org/IPv4WireguardInterfaceAddr"`
			CalicoWireGuard6 string `json:"projectcalico.org/IPv6WireguardInterfaceAddr"`
		} `json:"annotations" protobuf:"bytes,12,map"`
	} `json:"metadata" protobuf:"bytes,1"`
}

func (o *object) base() *object { return o }

// name returns the name under which the rows of the object are known. A
// namespaced object that names no namespace is in "default", as for kubectl.
func (o *object) name(namespaced bool) (tables.Name, error) {
	n := tables.Name{Name: o.Metadata.Name}
	if err := checkName("metadata.name", n.Name); err != nil {
		return n, err
	}
	if !namespaced {
		return n, nil
	}
	if n.Namespace = internString(o.Metadata.Namespace); n.Namespace == "" {
		n.Namespace = "default"
	}
	return n, checkName("metadata.namespace", n.Namespace)
}

// maxName is how many bytes a name has at most in the API.
const maxName = 253

// checkName returns an error for a name that would be taken for another one in
// an index key, that is too long for one, or that no path of the API can hold.
func checkName(field, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%s: required", field)
	case len(name) > maxName:
		return fmt.Errorf("%s: longer than %d bytes", field, maxName)
	case name == ".", name == "..", strings.ContainsAny(name, "/%\x00"):
		return fmt.Errorf("%s: %s is no name", field, strconv.Quote(name))
	}
	return nil
}

// created returns when the object was created, in UTC; zero if it does not say.
func (o *object) created(errs *fieldErrors) time.Time {
	s := o.Metadata.CreationTimestamp
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		errs.add("metadata.creationTimestamp", strconv.Quote(s)+": is no time as in 2006-01-02T15:04:05Z")
		return time.Time{}
	}
	return t.UTC()
}
