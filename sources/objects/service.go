// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

type service struct {
	object
	Spec struct {
		Type        string            `json:"type"`
		Selector    map[string]string `json:"selector"`
		ClusterIP   string            `json:"clusterIP"`
		ClusterIPs  []string          `json:"clusterIPs"`
		ExternalIPs []string          `json:"externalIPs"`
	} `json:"spec"`
	Status struct {
		LoadBalancer struct {
			Ingress []struct {
				IP string `json:"ip"`
			} `json:"ingress"`
		} `json:"loadBalancer"`
	} `json:"status"`
}

func services(o *service, name tables.Name, errs *fieldErrors) []*tables.Service {
	s := &tables.Service{Name: name, Labels: o.Metadata.Labels}
	if o.Spec.Type != "ExternalName" { // of which the selector does not count
		s.Selector = o.Spec.Selector
		s.Churning = churning(o.Spec.Selector)
		refuseChurnLabels("spec.selector", labels.SelectorFromSet(o.Spec.Selector).String(), errs)
	}
	add := func(field, ip string) {
		if ip != "" && ip != "None" {
			s.Addrs = errs.addr(s.Addrs, field, ip)
		}
	}
	add("spec.clusterIP", o.Spec.ClusterIP)
	for i, ip := range o.Spec.ClusterIPs {
		add(fmt.Sprintf("spec.clusterIPs[%d]", i), ip)
	}
	for i, ip := range o.Spec.ExternalIPs {
		add(fmt.Sprintf("spec.externalIPs[%d]", i), ip)
	}
	for i, in := range o.Status.LoadBalancer.Ingress {
		add(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP)
	}
	s.Errors = *errs
	return one(s)
}
