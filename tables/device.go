// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"
	"strconv"
	"strings"
)

// Device is a network device of this node.
type Device struct {
	Index       int      `json:"index"` // interface index, never reused while the device exists
	Name        string   `json:"name"`
	AltNames    []string `json:"altNames,omitempty"` // alternative names, in the kernel's order
	Type        string   `json:"type"`               // link kind (veth, bridge, vxlan...), loopback, or device if it has none
	Up          bool     `json:"up"`                 // administratively up
	OperUp      bool     `json:"operUp"`             // up and able to pass packets
	MTU         int      `json:"mtu"`                // bytes
	MAC         string   `json:"mac,omitempty"`      // lower-case hex with colons, empty if it has none
	MasterIndex int      `json:"masterIndex"`        // bridge, bond or VRF it belongs to, 0 if none
	ParentIndex int      `json:"parentIndex"`        // peer of a veth, lower device of a VLAN..., 0 if none
	PeerNetNSID int      `json:"peerNetNSID"`        // namespace ParentIndex is an index of, -1 for this one

	// Qdiscs are the queueing disciplines in which packets wait that the device sends: that of its
	// root, or if that is mq those of its queues, each once, in order.
	Qdiscs []string `json:"qdiscs,omitempty"`
}

// Paces reports whether all packets that the device sends wait for their departure times.
func (d *Device) Paces() bool { return slices.Equal(d.Qdiscs, []string{"fq"}) }

// Equal reports whether two rows say the same.
func (d *Device) Equal(o *Device) bool {
	return d.Index == o.Index && d.Name == o.Name && slices.Equal(d.AltNames, o.AltNames) && d.Type == o.Type &&
		d.Up == o.Up && d.OperUp == o.OperUp && d.MTU == o.MTU && d.MAC == o.MAC &&
		d.MasterIndex == o.MasterIndex && d.ParentIndex == o.ParentIndex &&
		d.PeerNetNSID == o.PeerNetNSID && slices.Equal(d.Qdiscs, o.Qdiscs)
}

// TableHeader implements [statedb.TableWritable].
func (*Device) TableHeader() []string {
	return []string{"Index", "Name", "AltNames", "Type", "Up", "OperUp", "MTU", "MAC", "Master",
		"Parent", "PeerNetNSID", "Qdiscs"}
}

// TableRow implements [statedb.TableWritable].
func (d *Device) TableRow() []string {
	return []string{
		strconv.Itoa(d.Index), d.Name, listColumn(d.AltNames, ", "), d.Type,
		strconv.FormatBool(d.Up), strconv.FormatBool(d.OperUp), strconv.Itoa(d.MTU), orDash(d.MAC),
		indexColumn(d.MasterIndex), indexColumn(d.ParentIndex), netnsColumn(d.PeerNetNSID),
		listColumn(d.Qdiscs, ", "),
	}
}

// withinNode begins the names of devices whose networks are within a node: other nodes cannot reach
// their addresses, and may reach another machine by the same. It is like the devices that Calico
// leaves out when it looks for a node's address.
var withinNode = []string{
	"docker", "br-", "cbr", "virbr", "lxcbr", "lxdbr", "podman", "veth", "cali", "tunl", "vxlan",
	"flannel", "cni", "cilium", "kube-ipvs", "nodelocaldns", "lo",
}

// IsWithinNode reports whether the network of a device, by its name, is within a node.
func IsWithinNode(device string) bool {
	return slices.ContainsFunc(withinNode, func(prefix string) bool {
		return strings.HasPrefix(device, prefix)
	})
}

// indexColumn renders an interface index, "-" if it is none.
func indexColumn(i int) string {
	if i == 0 {
		return "-"
	}
	return strconv.Itoa(i)
}

func netnsColumn(id int) string {
	if id < 0 {
		return "-"
	}
	return strconv.Itoa(id)
}

var (
	deviceIndexIndex = UniqueIndex("index", IntKeys, func(d *Device) int { return d.Index })

	deviceNameIndex = IndexEach("name", StringKeys,
		func(d *Device) []string { return append([]string{d.Name}, d.AltNames...) })

	deviceMasterIndex = IndexIf("master", IntKeys,
		func(d *Device) (int, bool) { return d.MasterIndex, d.MasterIndex != 0 })

	// DeviceByIndex queries a device by its interface index.
	DeviceByIndex = deviceIndexIndex.Query

	// DevicesByName queries the devices with a name or alternative name. The
	// kernel keeps them unique, but for a moment the table may hold two while
	// a name moves from one device to the other.
	DevicesByName = deviceNameIndex.Query

	// DevicesByMaster queries the devices that belong to a bridge, bond or VRF.
	DevicesByMaster = deviceMasterIndex.Query
)

// NewDeviceTable creates the table of devices.
var NewDeviceTable = Declare("devices", deviceIndexIndex, deviceNameIndex, deviceMasterIndex)
