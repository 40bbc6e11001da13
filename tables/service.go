// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Service is a service with the addresses that the cluster serves it at.
type Service struct {
	Name `yaml:",inline"`

	Labels labels.Set `json:"labels,omitempty"`

	// Selector is what the pods have that serve it, in its namespace. Without, its
	// backends are in [BackendSlice] rows only.
	Selector labels.Set `json:"selector,omitempty"`

	// Churning are the keys of Selector that endpoints do not keep, as their values
	// change with each rollout: of the pods that have the rest it is not known which
	// serve the service.
	Churning []string `json:"churning,omitempty"`

	// Addrs are the cluster addresses.
	Addrs []netip.Addr `json:"addrs,omitempty"`

	// ExternalIPs are any addresses that the author of the service names. LoadBalancerIPs are
	// in its status, which a controller writes.
	ExternalIPs     []netip.Addr `json:"externalIPs,omitempty"`
	LoadBalancerIPs []netip.Addr `json:"loadBalancerIPs,omitempty"`

	// NotProxied is set if kube-proxy leaves the service alone: it is headless, or another
	// proxy's.
	NotProxied bool `json:"notProxied,omitempty"`

	Ports  []ServicePort `json:"ports,omitempty"`
	Errors []FieldError  `json:"errors,omitempty"`
}

// TableHeader implements [statedb.TableWritable].
func (*Service) TableHeader() []string {
	return []string{"Name", "Labels", "Selector", "Addresses", "External", "Ports", "Errors"}
}

// TableRow implements [statedb.TableWritable].
func (s *Service) TableRow() []string {
	return []string{
		s.Name.String(), orDash(s.Labels.String()), orDash(s.Selector.String()),
		listColumn(stringsOf(s.Addrs), ", "), listColumn(stringsOf(s.External()), ", "),
		listColumn(stringsOf(s.Ports), ", "), errorColumn(s.Errors),
	}
}

// Kept is what of Selector endpoints have: at least all pods that serve the service.
func (s *Service) Kept() labels.Set {
	if len(s.Churning) == 0 {
		return s.Selector
	}
	kept := maps.Clone(s.Selector)
	for _, key := range s.Churning {
		delete(kept, key)
	}
	return kept
}

// External returns the external and load balancer addresses.
func (s *Service) External() []netip.Addr {
	return slices.Concat(s.ExternalIPs, s.LoadBalancerIPs)
}

// hasNodePorts reports whether nodes translate ports of their addresses for the service.
func (s *Service) hasNodePorts() bool {
	return slices.ContainsFunc(s.Ports, func(p ServicePort) bool { return p.NodePort != 0 })
}

var (
	serviceNameIndex = UniqueIndex("name", NameKeys, func(s *Service) Name { return s.Name })

	serviceAddrIndex = IndexEach("addr", AddrKeys, func(s *Service) []netip.Addr { return s.Addrs })

	serviceExternalIndex = IndexEach("external", AddrKeys, (*Service).External)

	serviceNodePortIndex = IndexEach("node-port", IntKeys, func(s *Service) (ports []int) {
		for _, p := range s.Ports {
			if p.NodePort != 0 {
				ports = append(ports, int(p.NodePort))
			}
		}
		return ports
	})

	// Of these it matters which pods serve them.
	serviceNodePortsOfIndex = IndexIf("node-ports-of", StringKeys,
		func(s *Service) (string, bool) { return s.Namespace, s.hasNodePorts() })

	// ServicesByNodePort queries the services with a port of nodes, of any protocol.
	ServicesByNodePort = serviceNodePortIndex.Query

	// ServicesWithNodePorts queries the services of a namespace with ports of nodes.
	ServicesWithNodePorts = serviceNodePortsOfIndex.Query

	// ServicesByExternal queries the services with an external or load balancer address.
	ServicesByExternal = serviceExternalIndex.Query

	// ServiceByName queries a service by its namespaced name.
	ServiceByName = serviceNameIndex.Query

	// ServicesByAddr queries the services with a cluster address.
	ServicesByAddr = serviceAddrIndex.Query
)

// NewServiceTable creates the table of services.
var NewServiceTable = Declare("services", serviceNameIndex, serviceAddrIndex,
	serviceExternalIndex, serviceNodePortIndex, serviceNodePortsOfIndex)
