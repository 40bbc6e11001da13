// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"maps"
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"
)

// Service is a service with the addresses that the cluster serves for it.
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

	// Addrs are the cluster, external and load-balancer addresses.
	Addrs  []netip.Addr  `json:"addrs,omitempty"`
	Ports  []ServicePort `json:"ports,omitempty"`
	Errors []FieldError  `json:"errors,omitempty"`
}

// TableHeader implements [statedb.TableWritable].
func (*Service) TableHeader() []string {
	return []string{"Name", "Labels", "Selector", "Addresses", "Ports", "Errors"}
}

// TableRow implements [statedb.TableWritable].
func (s *Service) TableRow() []string {
	return []string{
		s.Name.String(), orDash(s.Labels.String()), orDash(s.Selector.String()), listColumn(stringsOf(s.Addrs), ", "),
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

var (
	serviceNameIndex = UniqueIndex("name", NameKeys, func(s *Service) Name { return s.Name })

	serviceAddrIndex = IndexEach("addr", AddrKeys, func(s *Service) []netip.Addr { return s.Addrs })

	// ServiceByName queries a service by its namespaced name.
	ServiceByName = serviceNameIndex.Query

	// ServicesByAddr queries the services that are served under an address.
	ServicesByAddr = serviceAddrIndex.Query
)

// NewServiceTable creates the table of services.
var NewServiceTable = Declare("services", serviceNameIndex, serviceAddrIndex)
