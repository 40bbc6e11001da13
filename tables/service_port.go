// SPDX-License-Identifier: Apache-2.0

package tables

import "strconv"

// ServicePort is a port of a service, and the port of the backends that it leads to.
// Backends that an EndpointSlice lists have the port that the slice gives its name,
// see [BackendPort]; the target is that of pods that the service selects.
type ServicePort struct {
	Name     string `json:"name,omitempty"` // may be empty if it is the only one
	Protocol uint8  `json:"protocol"`       // IP protocol number
	Port     uint16 `json:"port"`

	TargetPort uint16 `json:"targetPort,omitempty"` // 0 if it is the pods' port TargetName
	TargetName string `json:"targetName,omitempty"` // of a [NamedPort]

	NodePort uint16 `json:"nodePort,omitempty"` // of every node, 0 if there is none
}

// String is as in http=80/tcp to 8080.
func (p ServicePort) String() string {
	text := portText(p.Name, p.Port, p.Protocol)
	switch {
	case p.TargetName != "":
		return text + " to " + p.TargetName
	case p.TargetPort != p.Port:
		return text + " to " + strconv.Itoa(int(p.TargetPort))
	}
	return text
}

// BackendPort is the port of all backends of an EndpointSlice for the [ServicePort]
// of its name and protocol.
type BackendPort struct {
	Name     string `json:"name,omitempty"`
	Protocol uint8  `json:"protocol"` // IP protocol number
	Port     uint16 `json:"port"`
}

// String is as in http=8080/tcp.
func (p BackendPort) String() string { return portText(p.Name, p.Port, p.Protocol) }

func portText(name string, port uint16, protocol uint8) string {
	text := PolicyPort{Protocol: protocol, First: port, Last: port}.String()
	if name == "" {
		return text
	}
	return name + "=" + text
}
