// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"slices"

	"github.com/sluice-net/sluice/tables"
)

type node struct {
	object
	Spec struct {
		PodCIDR  string   `json:"podCIDR"`
		PodCIDRs []string `json:"podCIDRs"`
	} `json:"spec"`
	Status struct {
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

func nodes(o *node, name tables.Name, errs *fieldErrors) []*tables.Node {
	n := &tables.Node{
		Name:   name.Name,
		UID:    o.Metadata.UID,
		Labels: o.Metadata.Labels,
		Ready:  slices.Contains(o.Status.Conditions, condition{Type: "Ready", Status: "True"}),
	}
	for i, a := range o.Status.Addresses {
		field := fmt.Sprintf("status.addresses[%d].address", i)
		switch a.Type {
		case "InternalIP":
			n.InternalIPs = errs.addr(n.InternalIPs, field, a.Address)
		case "ExternalIP":
			n.OtherIPs = errs.addr(n.OtherIPs, field, a.Address)
		}
	}
	if len(o.Spec.PodCIDRs) > 0 {
		n.PodCIDRs = errs.prefixes("spec.podCIDRs", o.Spec.PodCIDRs)
	} else if o.Spec.PodCIDR != "" {
		p, err := parsePrefix(o.Spec.PodCIDR)
		if err != nil {
			errs.add("spec.podCIDR", err.Error())
		} else {
			n.PodCIDRs = append(n.PodCIDRs, p)
		}
	}
	n.Errors = *errs
	return one(n)
}
