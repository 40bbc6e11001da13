// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/tables"
)

// LocalEndpoint is an address of a pod of this node, and the device that leads to it. The
// row stays until the device is gone, whatever becomes of the pod's object.
type LocalEndpoint struct {
	Addr     netip.Addr  `json:"addr"`
	Endpoint tables.Name `json:"endpoint"`

	// LabelSet is the last that is known of the pod; nil if none ever was: the CNI plugin
	// told of the interface, and the object has not been read.
	LabelSet *tables.LabelSet `json:"labelSet,omitempty"`

	IfIndex uint32 `json:"ifIndex"` // host side of the pod's veth, 0 while not known
	Device  string `json:"device,omitempty"`
	Master  int    `json:"master,omitempty"` // interface index of the bridge, bond or VRF of the device, 0 if none
	MAC     string `json:"mac,omitempty"`    // of the pod's own interface

	Reason string `json:"reason,omitempty"` // why there is no device
}

// Equal reports whether two rows say the same.
func (e *LocalEndpoint) Equal(o *LocalEndpoint) bool {
	a, b := *e, *o
	a.LabelSet, b.LabelSet = nil, nil
	return a == b && e.LabelSetID() == o.LabelSetID()
}

// LabelSetID returns the identity of the label set, the zero one if it is not known.
func (e *LocalEndpoint) LabelSetID() tables.LabelSetID {
	if e.LabelSet == nil {
		return tables.LabelSetID{}
	}
	return e.LabelSet.ID
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
		e.Addr.String(), e.Endpoint.String(), set, tables.OrDash(e.Device), tables.OrDash(e.MAC),
		tables.OrDash(e.Reason),
	}
}

var (
	localEndpointAddr = statedb.Index[*LocalEndpoint, netip.Addr]{
		Name: "addr", Unique: true, FromKey: index.NetIPAddr, FromString: index.NetIPAddrString,
		FromObject: func(e *LocalEndpoint) index.KeySet { return index.NewKeySet(index.NetIPAddr(e.Addr)) },
	}
	localEndpointLabelSet = statedb.Index[*LocalEndpoint, tables.LabelSetID]{
		Name: "label-set", FromKey: tables.DigestKey, FromString: tables.DigestFromString,
		FromObject: func(e *LocalEndpoint) index.KeySet {
			if e.LabelSet == nil {
				return index.NewKeySet()
			}
			return index.NewKeySet(tables.DigestKey(e.LabelSet.ID))
		},
	}
	localEndpointNamespace = statedb.Index[*LocalEndpoint, string]{
		Name: "namespace", FromKey: index.String, FromString: index.FromString,
		FromObject: func(e *LocalEndpoint) index.KeySet {
			return index.NewKeySet(index.String(e.Endpoint.Namespace))
		},
	}
	localEndpointDevice = statedb.Index[*LocalEndpoint, int]{
		Name: "device", FromKey: index.Int, FromString: index.IntString,
		FromObject: func(e *LocalEndpoint) index.KeySet {
			switch {
			case e.IfIndex == 0:
				return index.NewKeySet()
			case e.Master == 0:
				return index.NewKeySet(index.Int(int(e.IfIndex)))
			}
			return index.NewKeySet(index.Int(int(e.IfIndex)), index.Int(e.Master))
		},
	}

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
func NewLocalEndpointTable(db *statedb.DB) (statedb.RWTable[*LocalEndpoint], error) {
	return statedb.NewTable(db, "local-endpoints", localEndpointAddr, localEndpointLabelSet,
		localEndpointNamespace, localEndpointDevice)
}
