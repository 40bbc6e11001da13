// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/statedb"
)

// CNIPlugin says whether the agent has a CNI plugin that reports pods before they start, and where.
type CNIPlugin struct {
	Enabled bool
	RunDir  string // has a file for each interface
}

// CNIAttachment is a network interface of a pod of this node, as the CNI plugin reported it when it
// was created: before the pod's first process. It is authoritative about the device and the
// addresses.
type CNIAttachment struct {
	File      string       `json:"file"` // that has the report
	Container string       `json:"container"`
	IfName    string       `json:"ifName"` // inside the pod
	Pod       Name         `json:"pod"`
	UID       string       `json:"uid,omitempty"` // by the kubelet, empty if not passed on
	Device    string       `json:"device,omitempty"`
	IfIndex   int          `json:"ifIndex,omitempty"` // of the node's end, 0 if there is none
	MAC       string       `json:"mac,omitempty"`     // of the pod's end
	Addrs     []netip.Addr `json:"addrs,omitempty"`
	Created   time.Time    `json:"created"`
	Error     string       `json:"error,omitempty"` // why it cannot be used, or has no device
}

// TableHeader implements [statedb.TableWritable].
func (*CNIAttachment) TableHeader() []string {
	return []string{"File", "Pod", "Interface", "Device", "IfIndex", "MAC", "Addresses", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (a *CNIAttachment) TableRow() []string {
	return []string{
		a.File, orDash(a.Pod.String()), orDash(a.IfName), orDash(a.Device), indexColumn(a.IfIndex),
		orDash(a.MAC), listColumn(stringsOf(a.Addrs), ", "), orDash(a.Error),
	}
}

// IsOf reports whether the interface is of a pod: of its name and of its UID, as far as both are
// known. The kubelet knows a static pod by another UID than the API server.
func (a *CNIAttachment) IsOf(e *Endpoint) bool {
	return a.Pod == e.Name && (a.UID == "" || e.UID == "" || a.UID == e.UID || a.UID == e.MirrorOf)
}

var (
	cniAttachmentFileIndex = UniqueIndex("file", StringKeys,
		func(a *CNIAttachment) string { return a.File })

	cniAttachmentPodIndex = Index("pod", NameKeys, func(a *CNIAttachment) Name { return a.Pod })

	cniAttachmentAddrIndex = IndexEach("addr", AddrKeys,
		func(a *CNIAttachment) []netip.Addr { return a.Addrs })

	cniAttachmentDeviceIndex = Index("device", IntKeys,
		func(a *CNIAttachment) int { return a.IfIndex })

	// CNIAttachmentByFile queries an interface by the name of its file.
	CNIAttachmentByFile = cniAttachmentFileIndex.Query

	// CNIAttachmentsByPod queries the interfaces of a pod.
	CNIAttachmentsByPod = cniAttachmentPodIndex.Query

	// CNIAttachmentsByAddr queries the interfaces that were given an address. There are several
	// while the runtime has not reported the end of a former one.
	CNIAttachmentsByAddr = cniAttachmentAddrIndex.Query

	// CNIAttachmentsByDevice queries the interfaces to which a device leads, by its
	// interface index.
	CNIAttachmentsByDevice = cniAttachmentDeviceIndex.Query
)

// NewCNIAttachmentTable creates the table of interfaces that the CNI plugin reported.
var NewCNIAttachmentTable = Declare(
	"cni-attachments", cniAttachmentFileIndex, cniAttachmentPodIndex, cniAttachmentAddrIndex,
	cniAttachmentDeviceIndex,
)

// CNIAddrsOf returns the addresses of all interfaces of a pod's newest container, those
// of eth0 first, and when the first of them was made. They are none if no interface of
// the pod is known.
func CNIAddrsOf(
	txn statedb.ReadTxn, attachments statedb.Table[*CNIAttachment], e *Endpoint,
) (addrs []netip.Addr, made time.Time) {
	var interfaces []*CNIAttachment
	var last *CNIAttachment
	for a := range ListIfAny(txn, attachments, CNIAttachmentsByPod(e.Name)) {
		if !a.IsOf(e) || len(a.Addrs) == 0 {
			continue
		}
		interfaces = append(interfaces, a)
		if last == nil || a.Created.After(last.Created) {
			last = a
		}
	}
	slices.SortFunc(interfaces, func(a, b *CNIAttachment) int {
		if (a.IfName == defaultInterface) != (b.IfName == defaultInterface) {
			if a.IfName == defaultInterface {
				return -1
			}
			return 1
		}
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.IfName, b.IfName))
	})
	for _, a := range interfaces {
		if a.Container != last.Container {
			continue
		}
		addrs = append(addrs, a.Addrs...)
		if made.IsZero() || a.Created.Before(made) {
			made = a.Created
		}
	}
	return addrs, made
}

// defaultInterface is the name of the interface whose addresses a pod's status has.
const defaultInterface = "eth0"
