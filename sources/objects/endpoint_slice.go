// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

type endpointSlice struct {
	object
	AddressType string `json:"addressType" protobuf:"bytes,4"`
	Endpoints   []struct {
		Addresses []string `json:"addresses" protobuf:"bytes,1"`
		TargetRef struct {
			Kind      string `json:"kind" protobuf:"bytes,1"`
			Namespace string `json:"namespace" protobuf:"bytes,2"`
			Name      string `json:"name" protobuf:"bytes,3"`
			UID       string `json:"uid" protobuf:"bytes,4"`
		} `json:"targetRef" protobuf:"bytes,4"`
		NodeName   string `json:"nodeName" protobuf:"bytes,6"`
		Conditions struct {
			Ready       *bool `json:"ready" protobuf:"varint,1"`
			Serving     *bool `json:"serving" protobuf:"varint,2"`
			Terminating *bool `json:"terminating" protobuf:"varint,3"`
		} `json:"conditions" protobuf:"bytes,2"`
	} `json:"endpoints" protobuf:"bytes,2"`
	Ports []struct {
		Name     string `json:"name" protobuf:"bytes,1"`
		Protocol string `json:"protocol" protobuf:"bytes,2"`
		Port     *int64 `json:"port" protobuf:"varint,3"`
	} `json:"ports" protobuf:"bytes,3"`
}

const labelServiceName = "kubernetes.io/service-name"

// backendSlices returns the slice with its ports and addresses. Those that it says are of pods
// are apart. Agents write slices of no service.
func backendSlices(o *endpointSlice, name tables.Name, errs *fieldErrors) []*tables.BackendSlice {
	s := &tables.BackendSlice{Name: name}
	if service := o.Metadata.Labels[labelServiceName]; service != "" {
		s.Service = tables.Name{Namespace: name.Namespace, Name: service}
	}
	switch {
	case s.Service.Name == "" && o.Metadata.Labels[tables.LabelManagedBy] == tables.ManagedByAgents:
		s.Pods, s.Node = o.announced(errs), o.announcedNode(errs)
	case o.AddressType != "FQDN":
		s.Serves = o.serves()
		for i, e := range o.Endpoints {
			to := &s.Addrs
			if e.TargetRef.Kind == "Pod" {
				to = &s.PodAddrs
			}
			for j, a := range e.Addresses {
				*to = errs.addr(*to, fmt.Sprintf("endpoints[%d].addresses[%d]", i, j), a)
			}
		}
		s.Addrs, s.PodAddrs = distinct(s.Addrs), distinct(s.PodAddrs)
		s.Ports = o.ports(errs)
	}
	s.Errors = *errs
	return one(s)
}

// serves returns the family of the backends that kube-proxy would choose: some that are ready, or
// else some that serve while they terminate. It is 0 if there is none.
func (o *endpointSlice) serves() uint8 {
	if isNotProxied(o.Metadata.Labels) {
		return 0
	}
	for _, e := range o.Endpoints {
		c := e.Conditions
		ready := c.Ready == nil || *c.Ready
		drains := c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating
		if len(e.Addresses) == 0 || !ready && !drains {
			continue
		}
		if o.AddressType == "IPv6" {
			return bpf.FamilyIPv6
		}
		return bpf.FamilyIPv4
	}
	return 0
}

// announced returns the addresses of pods in a slice that an agent wrote.
func (o *endpointSlice) announced(errs *fieldErrors) (pods []tables.PodAddrs) {
	var status map[string][]netip.Addr // by UID
	if text := o.Metadata.Annotations.StatusAddrs; text != "" {
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			errs.add("metadata.annotations["+tables.AnnotationStatusAddrs+"]", err.Error())
			return nil // of which announcements count cannot be told
		}
	}
	for i, e := range o.Endpoints {
		if e.TargetRef.Kind != "Pod" {
			continue
		}
		p := tables.PodAddrs{
			Pod:  tables.Name{Namespace: internString(e.TargetRef.Namespace), Name: e.TargetRef.Name},
			UID:  e.TargetRef.UID,
			Node: internString(e.NodeName),

			StatusAddrs: status[e.TargetRef.UID],
		}
		for j, a := range e.Addresses {
			p.Addrs = errs.addr(p.Addrs, fmt.Sprintf("endpoints[%d].addresses[%d]", i, j), a)
		}
		p.Addrs = distinct(p.Addrs)
		if len(p.Addrs) > 0 {
			pods = append(pods, p)
		}
	}
	return pods
}

// announcedNode returns the addresses of a node in a slice that its agent wrote.
func (o *endpointSlice) announcedNode(errs *fieldErrors) (n tables.NodeAddrs) {
	for i, e := range o.Endpoints {
		if e.TargetRef.Kind != "Node" || e.NodeName == "" || n.Name != "" {
			continue
		}
		n.Name = internString(e.NodeName)
		for j, a := range e.Addresses {
			n.Addrs = errs.addr(n.Addrs, fmt.Sprintf("endpoints[%d].addresses[%d]", i, j), a)
		}
		n.Addrs = distinct(n.Addrs)
	}
	return n
}

// ports returns those of the slice that have a number.
func (o *endpointSlice) ports(errs *fieldErrors) (out []tables.BackendPort) {
	for i, p := range o.Ports {
		if p.Port == nil {
			continue
		}
		field := indexed("ports", i)
		protocol, known := errs.protocol(field+".protocol", p.Protocol)
		number, valid := errs.portNumber(field+".port", *p.Port)
		if known && valid {
			out = append(out, tables.BackendPort{Name: internString(p.Name), Protocol: protocol, Port: number})
		}
	}
	return out
}
