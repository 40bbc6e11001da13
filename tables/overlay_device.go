// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
)

// OverlayDevice is a VXLAN device that this node has to have, by which packets
// reach other nodes.
type OverlayDevice struct {
	Name   string            `json:"name"`
	VNI    uint32            `json:"vni"`            // set in each packet, not a property of the device
	Port   uint16            `json:"port"`           // UDP port on which all nodes listen
	MTU    int               `json:"mtu"`            // bytes, of the packets inside
	Local  netip.Addr        `json:"local,omitzero"` // of this node, from which packets are sent; its family is that of the underlay
	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (o *OverlayDevice) Equal(p *OverlayDevice) bool {
	return o.Name == p.Name && o.VNI == p.VNI && o.Port == p.Port && o.MTU == p.MTU && o.Local == p.Local
}

// Clone returns a shallow copy.
func (o *OverlayDevice) Clone() *OverlayDevice { c := *o; return &c }

// SetStatus sets the reconciliation status.
func (o *OverlayDevice) SetStatus(status reconciler.Status) *OverlayDevice {
	o.Status = status
	return o
}

// GetStatus returns the reconciliation status.
func (o *OverlayDevice) GetStatus() reconciler.Status { return o.Status }

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
	overlayDeviceNameIndex = statedb.Index[*OverlayDevice, string]{
		Name:       "name",
		FromObject: func(o *OverlayDevice) index.KeySet { return index.NewKeySet(index.String(o.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}

	// OverlayDeviceByName queries an overlay device by its name.
	OverlayDeviceByName = overlayDeviceNameIndex.Query
)

// NewOverlayDeviceTable creates the table of overlay devices.
func NewOverlayDeviceTable(db *statedb.DB) (statedb.RWTable[*OverlayDevice], error) {
	return statedb.NewTable(db, "overlay-devices", overlayDeviceNameIndex)
}
