// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"
)

// OverlayDevice is a VXLAN device that this node has to have, by which packets
// reach other nodes.
type OverlayDevice struct {
	Name  string     `json:"name"`
	VNI   uint32     `json:"vni"`            // set in each packet, not a property of the device
	Port  uint16     `json:"port"`           // UDP port on which all nodes listen
	MTU   int        `json:"mtu"`            // bytes, of the packets inside
	Local netip.Addr `json:"local,omitzero"` // of this node, from which packets are sent; its family is that of the underlay

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (o *OverlayDevice) Equal(p *OverlayDevice) bool {
	return o.Name == p.Name && o.VNI == p.VNI && o.Port == p.Port && o.MTU == p.MTU && o.Local == p.Local
}

// TableHeader implements [statedb.TableWritable].
func (*OverlayDevice) TableHeader() []string {
	return []string{"Name", "VNI", "Port", "MTU", "Local", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (o *OverlayDevice) TableRow() []string {
	return []string{
		o.Name, strconv.FormatUint(uint64(o.VNI), 10), strconv.FormatUint(uint64(o.Port), 10), strconv.Itoa(o.MTU),
		addrColumn(o.Local), o.Status.Kind.String(), orDash(o.Status.GetError()),
	}
}

var (
	overlayDeviceNameIndex = UniqueIndex("name", StringKeys,
		func(o *OverlayDevice) string { return o.Name })

	// OverlayDeviceByName queries an overlay device by its name.
	OverlayDeviceByName = overlayDeviceNameIndex.Query
)

// NewOverlayDeviceTable creates the table of overlay devices.
var NewOverlayDeviceTable = Declare("overlay-devices", overlayDeviceNameIndex)
