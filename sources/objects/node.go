// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"

	"github.com/sluice-net/sluice/tables"
)

type node struct {
	object
	Spec struct {
		PodCIDR       string   `json:"podCIDR" protobuf:"bytes,1"`
		PodCIDRs      []string `json:"podCIDRs" protobuf:"bytes,7"`
		Unschedulable bool     `json:"unschedulable" protobuf:"varint,4"`
	} `json:"spec" protobuf:"bytes,2"`
	Status struct {
		Addresses []struct {
			Type    string `json:"type" protobuf:"bytes,1"`
			Address string `json:"address" protobuf:"bytes,2"`
		} `json:"addresses" protobuf:"bytes,5"`
		Conditions []nodeCondition `json:"conditions" protobuf:"bytes,4"`
	} `json:"status" protobuf:"bytes,3"`
}

type nodeCondition struct {
	Type   string `json:"type" protobuf:"bytes,1"`
	Status string `json:"status" protobuf:"bytes,2"`
	Since  string `json:"lastTransitionTime" protobuf:"bytes,4,time"`
}

// ready returns the condition of that name, nil if the node has none.
func (n *node) ready() *nodeCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == "Ready" {
			return c
		}
	}
	return nil
}

// operatorNodeKind is [nodeKind] for the operator, which chooses nodes by their times too.
func operatorNodeKind() *Kind {
	k := nodeKind()
	k.decoder = decoderFor(func(o *node, name tables.Name, errs *fieldErrors) []*tables.Node {
		times := &tables.NodeTimes{Created: o.created(errs)}
		if ready := o.ready(); ready != nil {
			times.Ready, _ = optionalTime(ready.Since) // one that does not parse is none
		}
		rows := nodes(o, name, errs)
		rows[0].Times = times
		return rows
	})
	return k
}

func nodes(o *node, name tables.Name, errs *fieldErrors) []*tables.Node {
	n := &tables.Node{
		Name:     name.Name,
		UID:      o.Metadata.UID,
		Labels:   o.Metadata.Labels,
		Draining: o.Spec.Unschedulable || o.Metadata.Annotations.DrainGateway != "",
		Drain:    o.Metadata.Annotations.DrainGateway,
	}
	if ready := o.ready(); ready != nil {
		n.Ready = ready.Status == "True"
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
	n.InternalIPs, n.OtherIPs = distinct(n.InternalIPs), distinct(n.OtherIPs)
	// What a node's host sends to pods of other nodes comes from them. They look like
	// addresses of pods: Calico takes them from the pods' range.
	annotations := o.Metadata.Annotations
	for _, a := range []struct{ name, addr string }{
		{"IPv4IPIPTunnelAddr", annotations.CalicoIPIP4},
		{"IPv4VXLANTunnelAddr", annotations.CalicoVXLAN4},
		{"IPv6VXLANTunnelAddr", annotations.CalicoVXLAN6},
		{"IPv4WireguardInterfaceAddr", annotations.CalicoWireGuard4},
		{"IPv6WireguardInterfaceAddr", annotations.CalicoWireGuard6},
	} {
		if a.addr != "" {
			field := "metadata.annotations[projectcalico.org/" + a.name + "]"
			n.TunnelIPs = errs.addr(n.TunnelIPs, field, a.addr)
		}
	}
	n.TunnelIPs = distinct(n.TunnelIPs)
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
