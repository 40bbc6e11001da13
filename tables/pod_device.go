// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"

	"github.com/sluice-net/sluice/bpf"
)

// PodDevice is the host side of the veth of a pod of this node. An entry of sluice_devices.
type PodDevice struct {
	IfIndex  uint32     `json:"ifIndex"`
	Device   string     `json:"device"`
	Endpoint Name       `json:"endpoint"`
	Addr     netip.Addr `json:"addr"` // the first of the pod's, which the entry of sluice_pods has

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (d *PodDevice) Equal(o *PodDevice) bool { return sameButStatus(d, o) }

// MapKey is the key in sluice_devices.
func (d *PodDevice) MapKey() bpf.DeviceKey { return bpf.DeviceKey{IfIndex: d.IfIndex} }

// MapValue is the value in sluice_devices.
func (d *PodDevice) MapValue() bpf.DeviceValue {
	return bpf.DeviceValue{Addr: bpf.AddressFrom(d.Addr)}
}

// TableHeader implements [statedb.TableWritable].
func (*PodDevice) TableHeader() []string {
	return []string{"IfIndex", "Device", "Pod", "Address", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (d *PodDevice) TableRow() []string {
	return []string{
		number(d.IfIndex), orDash(d.Device), d.Endpoint.String(), d.Addr.String(),
		d.Status.Kind.String(), orDash(d.Status.GetError()),
	}
}

var (
	podDeviceIfIndex = UniqueIndex("ifindex", Uint32Keys,
		func(d *PodDevice) uint32 { return d.IfIndex })

	// PodDeviceByIfIndex queries the pod that a device leads to.
	PodDeviceByIfIndex = podDeviceIfIndex.Query
)

// NewPodDeviceTable creates the table of the devices of this node's pods.
var NewPodDeviceTable = Declare("pod-devices", podDeviceIfIndex)
