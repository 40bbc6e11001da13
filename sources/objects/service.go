// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

type service struct {
	object
	Spec struct {
		Type        string            `json:"type" protobuf:"bytes,4"`
		Selector    map[string]string `json:"selector" protobuf:"bytes,2"`
		ClusterIP   string            `json:"clusterIP" protobuf:"bytes,3"`
		ClusterIPs  []string          `json:"clusterIPs" protobuf:"bytes,18"`
		ExternalIPs []string          `json:"externalIPs" protobuf:"bytes,5"`
		Ports       []servicePort     `json:"ports" protobuf:"bytes,1"`
	} `json:"spec" protobuf:"bytes,2"`
	Status struct {
		LoadBalancer struct {
			Ingress []struct {
				IP     string `json:"ip" protobuf:"bytes,1"`
				IPMode string `json:"ipMode" protobuf:"bytes,3"`
			} `json:"ingress" protobuf:"bytes,1"`
		} `json:"loadBalancer" protobuf:"bytes,1"`
	} `json:"status" protobuf:"bytes,3"`
}

type servicePort struct {
	Name       string `json:"name" protobuf:"bytes,1"`
	Protocol   string `json:"protocol" protobuf:"bytes,2"`
	Port       int64  `json:"port" protobuf:"varint,3"`
	TargetPort any    `json:"targetPort" protobuf:"bytes,4"` // number or name
	NodePort   int64  `json:"nodePort" protobuf:"varint,5"`
}

func services(o *service, name tables.Name, errs *fieldErrors) []*tables.Service {
	s := &tables.Service{Name: name, Labels: o.Metadata.Labels}
	if o.Spec.Type != "ExternalName" { // that is a name only, whatever else it says
		o.fill(s, errs)
	}
	s.Errors = *errs
	return one(s)
}

func (o *service) fill(s *tables.Service, errs *fieldErrors) {
	s.Selector = o.Spec.Selector
	s.Churning = churning(o.Spec.Selector)
	refuseChurnLabels("spec.selector", labels.SelectorFromSet(o.Spec.Selector).String(), errs)
	s.Ports = errs.servicePorts("spec.ports", o.Spec.Ports)
	add := func(to *[]netip.Addr, field, ip string) {
		if ip != "" && ip != clusterIPNone {
			*to = errs.addr(*to, field, ip)
		}
	}
	add(&s.Addrs, "spec.clusterIP", o.Spec.ClusterIP)
	for i, ip := range o.Spec.ClusterIPs {
		add(&s.Addrs, fmt.Sprintf("spec.clusterIPs[%d]", i), ip)
	}
	for i, ip := range o.Spec.ExternalIPs {
		add(&s.ExternalIPs, fmt.Sprintf("spec.externalIPs[%d]", i), ip)
	}
	for i, in := range o.Status.LoadBalancer.Ingress {
		// With the mode Proxy the load balancer is to get the packets.
		if in.IPMode != "Proxy" {
			add(&s.LoadBalancerIPs, fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP)
		}
	}
	s.Addrs, s.ExternalIPs = distinct(s.Addrs), distinct(s.ExternalIPs)
	s.LoadBalancerIPs = distinct(s.LoadBalancerIPs)
	s.NotProxied = len(s.Addrs) == 0 || isNotProxied(o.Metadata.Labels)
}

const clusterIPNone = "None"

// isNotProxied reports whether labels of a service or an EndpointSlice tell kube-proxy to leave it
// alone.
func isNotProxied(set labels.Set) bool {
	return set.Has("service.kubernetes.io/service-proxy-name") || set.Has("service.kubernetes.io/headless")
}

// servicePorts returns the ports of a service that have no mistake.
func (e *fieldErrors) servicePorts(field string, ports []servicePort) (out []tables.ServicePort) {
	for i, p := range ports {
		field := indexed(field, i)
		protocol, known := e.protocol(field+".protocol", p.Protocol)
		number, valid := e.portNumber(field+".port", p.Port)
		if !known || !valid {
			continue
		}
		port := tables.ServicePort{Name: internString(p.Name), Protocol: protocol, Port: number}
		if p.NodePort != 0 {
			port.NodePort, _ = e.portNumber(field+".nodePort", p.NodePort)
		}
		if e.targetPort(&port, field+".targetPort", p.TargetPort) {
			out = append(out, port)
		}
	}
	return out
}

// targetPort sets where a port leads: to the same one, if the field says nothing.
func (e *fieldErrors) targetPort(port *tables.ServicePort, field string, value any) (valid bool) {
	switch v := value.(type) {
	case int64:
		if v != 0 {
			port.TargetPort, valid = e.portNumber(field, v)
			return valid
		}
	case string:
		port.TargetName = internString(v)
		if v != "" {
			return true
		}
	case nil:
	default:
		e.note(field, "is neither a number nor a name")
		return false
	}
	port.TargetPort = port.Port
	return true
}
