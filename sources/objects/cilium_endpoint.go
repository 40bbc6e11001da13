// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/sluice-net/sluice/tables"
)

type ciliumEndpoint struct {
	object
	Status struct {
		Identity struct {
			ID int64 `json:"id"`
		} `json:"identity"`
		Networking *ciliumNetworking `json:"networking"`
		NamedPorts []ciliumPort      `json:"named-ports"`
	} `json:"status"`
}

type ciliumNetworking struct {
	Node       string `json:"node"`
	Addressing []struct {
		IPv4 string `json:"ipv4"`
		IPv6 string `json:"ipv6"`
	} `json:"addressing"`
}

type ciliumPort struct {
	Name     string `json:"name"`
	Port     int64  `json:"port"`
	Protocol string `json:"protocol"`
}

func ciliumEndpoints(o *ciliumEndpoint, name tables.Name, errs *fieldErrors) []*tables.CiliumEndpoint {
	e := &tables.CiliumEndpoint{
		Name:     name,
		UID:      o.Metadata.UID,
		Created:  o.created(errs),
		Identity: errs.identity("status.identity.id", o.Status.Identity.ID),
	}
	if e.UID == "" {
		errs.add("metadata.uid", "required")
	}
	o.Status.Networking.fill(e, "status.networking", errs)
	e.NamedPorts = errs.ciliumPorts("status.named-ports", o.Status.NamedPorts)
	e.Errors = *errs
	return one(e)
}

type ciliumEndpointSlice struct {
	object
	Namespace string `json:"namespace"`
	Endpoints []struct {
		Name       string            `json:"name"`
		ID         int64             `json:"id"`
		Networking *ciliumNetworking `json:"networking"`
		NamedPorts []ciliumPort      `json:"named-ports"`
	} `json:"endpoints"`
}

// checkName returns an error if the endpoints of the slice have no namespace.
func (o *ciliumEndpointSlice) checkName() error { return checkName("namespace", o.Namespace) }

// ciliumSliceEndpoints returns the endpoints of a slice. One that has no usable
// name is told as an error of the others, having no row of its own.
func ciliumSliceEndpoints(o *ciliumEndpointSlice, slice tables.Name, errs *fieldErrors) []*tables.CiliumEndpoint {
	rows := make([]*tables.CiliumEndpoint, 0, len(o.Endpoints))
	whole := *errs
	for i, ep := range o.Endpoints {
		field := fmt.Sprintf("endpoints[%d]", i)
		name := tables.Name{Namespace: internString(o.Namespace), Name: ep.Name}
		if err := checkName(field+".name", name.Name); err != nil {
			whole.add(field+".name", "no usable name")
			continue
		}
		if slices.ContainsFunc(rows, func(r *tables.CiliumEndpoint) bool { return r.Name == name }) {
			whole.add(field+".name", strconv.Quote(name.Name)+" is in the slice twice")
			continue
		}
		own := errs.of(field)
		e := &tables.CiliumEndpoint{Name: name, Slice: slice.Name, Identity: own.identity(field+".id", ep.ID)}
		ep.Networking.fill(e, field+".networking", &own)
		e.NamedPorts = own.ciliumPorts(field+".named-ports", ep.NamedPorts)
		e.Errors = own
		rows = append(rows, e)
	}
	for _, f := range whole {
		for _, r := range rows {
			if !slices.Contains(r.Errors, f) {
				r.Errors = append(r.Errors, f)
			}
		}
	}
	return rows
}

// fill sets the addresses of an endpoint. Without any it cannot be used.
func (n *ciliumNetworking) fill(e *tables.CiliumEndpoint, field string, errs *fieldErrors) {
	if n == nil {
		errs.add(field, "required")
		return
	}
	for i, a := range n.Addressing {
		for _, ip := range []struct{ version, addr string }{{"ipv4", a.IPv4}, {"ipv6", a.IPv6}} {
			if ip.addr != "" {
				e.Addrs = errs.addr(e.Addrs, fmt.Sprintf("%s.addressing[%d].%s", field, i, ip.version), ip.addr)
			}
		}
	}
	e.Addrs = distinct(e.Addrs)
	if len(n.Addressing) == 0 {
		errs.add(field+".addressing", "required")
	}
	node, err := parseAddr(n.Node)
	if err != nil {
		errs.add(field+".node", err.Error())
	}
	e.NodeIP = node
}

// identity returns the number of an identity, 0 if it is none.
func (e *fieldErrors) identity(field string, id int64) uint32 {
	switch {
	case id == 0:
		e.add(field, "required")
	case id < 0 || id > math.MaxUint32:
		e.add(field, strconv.FormatInt(id, 10)+" is no identity")
	default:
		return uint32(id)
	}
	return 0
}

func (e *fieldErrors) ciliumPorts(field string, ports []ciliumPort) []tables.NamedPort {
	in := make([]port, len(ports))
	for i, p := range ports {
		in[i] = port{name: p.Name, protocol: p.Protocol, number: p.Port}
	}
	return e.namedPorts(func(i int) string { return field + "[" + strconv.Itoa(i) + "]" }, in)
}
