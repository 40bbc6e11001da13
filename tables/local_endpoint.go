// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
)

// LocalEndpoint is an address of a pod of this node, and the device that leads to it. The
// row stays until the device is gone, whatever becomes of the pod's object.
type LocalEndpoint struct {
	Addr     netip.Addr `json:"addr"`
	Endpoint Name       `json:"endpoint"`

	// LabelSet is the last known one of the pod; nil if none was ever known: the CNI plugin
	// reported the interface, and the object has not been read.
	LabelSet *LabelSet `json:"labelSet,omitempty"`

	IfIndex uint32 `json:"ifIndex"` // host side of the pod's veth, 0 while not known
	Device  string `json:"device,omitempty"`
	// interface index of the bridge, bond or VRF of the device, 0 if none
	Master int    `json:"master,omitempty"`
	MAC    string `json:"mac,omitempty"` // of the pod's own interface

	Reason string `json:"reason,omitempty"` // why there is no device
}

// Equal reports whether two rows say the same.
func (e *LocalEndpoint) Equal(o *LocalEndpoint) bool {
	a, b := *e, *o
	a.LabelSet, b.LabelSet = nil, nil
	return a == b && e.LabelSetID() == o.LabelSetID()
}

// LabelSetID returns the identity of the label set, the zero one if it is not known.
func (e *LocalEndpoint) LabelSetID() LabelSetID {
	if e.LabelSet == nil {
		return LabelSetID{}
	}
	return e.LabelSet.ID
}

// devices returns the interface indexes of the device and of what it is behind.
func (e *LocalEndpoint) devices() []int {
	switch {
	case e.IfIndex == 0:
		return nil
	case e.Master == 0:
		return []int{int(e.IfIndex)}
	}
	return []int{int(e.IfIndex), e.Master}
}

// TableHeader implements [statedb.TableWritable].
func (*LocalEndpoint) TableHeader() []string {
	return []string{"Address", "Endpoint", "LabelSet", "Device", "MAC", "Reason"}
}

// TableRow implements [statedb.TableWritable].
func (e *LocalEndpoint) TableRow() []string {
	set := "-"
	if e.LabelSet != nil {
		set = e.LabelSet.ID.String()[:8]
	}
	return []string{
		e.Addr.String(), e.Endpoint.String(), set, orDash(e.Device), orDash(e.MAC),
		orDash(e.Reason),
	}
}

var (
	localEndpointAddr = UniqueIndex("addr", AddrKeys,
		func(e *LocalEndpoint) netip.Addr { return e.Addr })
	localEndpointLabelSet = IndexIf("label-set", DigestKeys,
		func(e *LocalEndpoint) (LabelSetID, bool) { return e.LabelSetID(), e.LabelSet != nil })
	localEndpointNamespace = Index("namespace", StringKeys,
		func(e *LocalEndpoint) string { return e.Endpoint.Namespace })
	localEndpointDevice = IndexEach("device", IntKeys, (*LocalEndpoint).devices)

	// LocalEndpointByAddr queries the local pod with an address.
	LocalEndpointByAddr = localEndpointAddr.Query

	// LocalEndpointsByLabelSet queries the addresses of local pods with a label set.
	LocalEndpointsByLabelSet = localEndpointLabelSet.Query

	// LocalEndpointsByNamespace queries the addresses of local pods of a namespace.
	LocalEndpointsByNamespace = localEndpointNamespace.Query

	// LocalEndpointsByDevice queries the local pods to which a device leads, or behind a
	// bridge, by its interface index.
	LocalEndpointsByDevice = localEndpointDevice.Query
)

// NewLocalEndpointTable creates the table of addresses of local pods.
var NewLocalEndpointTable = Declare("local-endpoints", localEndpointAddr, localEndpointLabelSet,
	localEndpointNamespace, localEndpointDevice)
