// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-net/sluice/tables"
)

type pod struct {
	object
	Spec struct {
		NodeName           string      `json:"nodeName" protobuf:"bytes,10"`
		HostNetwork        bool        `json:"hostNetwork" protobuf:"varint,11"`
		ServiceAccountName string      `json:"serviceAccountName" protobuf:"bytes,8"`
		Containers         []container `json:"containers" protobuf:"bytes,2"`
		InitContainers     []container `json:"initContainers" protobuf:"bytes,20"`
	} `json:"spec" protobuf:"bytes,2"`
	Status struct {
		Phase  string `json:"phase" protobuf:"bytes,1"`
		PodIP  string `json:"podIP" protobuf:"bytes,6"`
		PodIPs []struct {
			IP string `json:"ip" protobuf:"bytes,1"`
		} `json:"podIPs" protobuf:"bytes,12"`
	} `json:"status" protobuf:"bytes,3"`
}

type container struct {
	RestartPolicy string `json:"restartPolicy" protobuf:"bytes,24"`
	Ports         []struct {
		Name          string `json:"name" protobuf:"bytes,1"`
		ContainerPort int64  `json:"containerPort" protobuf:"varint,3"`
		Protocol      string `json:"protocol" protobuf:"bytes,4"`
		HostPort      int64  `json:"hostPort" protobuf:"varint,2"`
		HostIP        string `json:"hostIP" protobuf:"bytes,5"`
	} `json:"ports" protobuf:"bytes,6"`
}

// endpoints returns the endpoint that a pod is. A pod that is not an endpoint,
// or no longer, has none. A pod that is being deleted has one until it ended.
func (n *Interner) endpoints(p *pod, name tables.Name, errs *fieldErrors) []*tables.Endpoint {
	if p.Spec.HostNetwork || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
		return nil
	}
	e := &tables.Endpoint{
		Name:    name,
		UID:     p.Metadata.UID,
		Node:    internString(p.Spec.NodeName),
		Created: p.created(errs),

		MirrorOf: p.Metadata.Annotations.ConfigMirror,
	}
	if len(p.Status.PodIPs) == 0 && p.Status.PodIP != "" {
		e.Addrs = errs.addr(nil, "status.podIP", p.Status.PodIP)
	}
	for i, ip := range p.Status.PodIPs {
		e.Addrs = errs.addr(e.Addrs, fmt.Sprintf("status.podIPs[%d].ip", i), ip.IP)
	}
	e.Addrs = distinct(e.Addrs)
	e.LabelSet = n.LabelSet(
		name.Namespace, p.Spec.ServiceAccountName, podLabels(p.Metadata.Labels), p.namedPorts(errs),
	)
	e.HostPorts = p.hostPorts(errs)
	e.Errors = *errs
	return one(e)
}

// hostPorts returns the ports of the node that lead to the containers, and to side-cars.
func (p *pod) hostPorts(errs *fieldErrors) (all []tables.HostPort) {
	collect := func(field string, c container) {
		for i, port := range c.Ports {
			if port.HostPort == 0 {
				continue
			}
			field := indexed(field+".ports", i)
			protocol, known := errs.protocol(field+".protocol", port.Protocol)
			host, valid := errs.portNumber(field+".hostPort", port.HostPort)
			number, isValid := errs.portNumber(field+".containerPort", port.ContainerPort)
			addr, has := errs.hostAddr(field+".hostIP", port.HostIP)
			if known && valid && isValid && has {
				all = append(all, tables.HostPort{
					Addr: addr, Protocol: protocol, Port: host, ContainerPort: number,
				})
			}
		}
	}
	for i, c := range p.Spec.Containers {
		collect(indexed("spec.containers", i), c)
	}
	for i, c := range p.Spec.InitContainers {
		if c.RestartPolicy == "Always" {
			collect(indexed("spec.initContainers", i), c)
		}
	}
	return all
}

// hostAddr returns the address of a node at which a port is to be: invalid if that is any, and
// none at all if pods cannot reach it.
func (e *fieldErrors) hostAddr(field, text string) (addr netip.Addr, has bool) {
	if text == "" {
		return addr, true
	}
	addr, err := parseIP(text)
	if err != nil {
		e.note(field, err.Error())
		return addr, false
	}
	addr = addr.WithZone("")
	return addr, !addr.IsLoopback()
}

// namedPorts returns the named ports of the containers, and of the init
// containers that stay: the side-cars.
func (p *pod) namedPorts(errs *fieldErrors) []tables.NamedPort {
	var (
		ports  []port
		fields []string
	)
	collect := func(field string, containers []container, all bool) {
		for i, c := range containers {
			if !all && c.RestartPolicy != "Always" {
				continue
			}
			for j, cp := range c.Ports {
				ports = append(ports, port{name: cp.Name, protocol: cp.Protocol, number: cp.ContainerPort})
				fields = append(fields, fmt.Sprintf("spec.%s[%d].ports[%d]", field, i, j))
			}
		}
	}
	collect("containers", p.Spec.Containers, true)
	collect("initContainers", p.Spec.InitContainers, false)
	return errs.namedPorts(func(i int) string { return fields[i] }, ports)
}

// churnLabels change with each rollout, or run, of one and the same workload: with
// them all its pods would get new label sets. A policy that selects on them is told
// so. Labels that tell the pods of a stateful set or of a job apart are kept:
// policies and services select single pods by them.
var churnLabels = []string{
	"batch.kubernetes.io/controller-uid", "controller-revision-hash", "controller-uid",
	"pod-template-generation", "pod-template-hash",
}

// churning returns the keys of a set that are such labels.
func churning(set labels.Set) (keys []string) {
	for _, key := range churnLabels {
		if set.Has(key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Labels that stand for something other than a label of the pod.
const (
	labelNamespace       = "io.kubernetes.pod.namespace"
	labelServiceAccount  = "io.cilium.k8s.policy.serviceaccount"
	labelCluster         = "io.cilium.k8s.policy.cluster"
	labelNamespacePrefix = "io.cilium.k8s.namespace.labels." // a label of the namespace
)

// podLabels takes from the labels of a pod those that churn, and those by which
// the pod would claim a namespace or a service account that is not its own.
func podLabels(set labels.Set) labels.Set {
	maps.DeleteFunc(set, func(key, _ string) bool { return isInjected(key) })
	for _, key := range churnLabels {
		delete(set, key)
	}
	if len(set) == 0 {
		return nil
	}
	return set
}

func isInjected(key string) bool {
	return key == labelNamespace || key == labelServiceAccount || key == labelCluster ||
		strings.HasPrefix(key, labelNamespacePrefix)
}
