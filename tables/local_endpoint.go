// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
)

// LocalEndpoint is an address of a pod on this node. An entry of sluice_pods.
//
// SubjectClass is the class that the pod belongs to as the subject of network
// policies, if that is ready. Else it is the one that it has had so far, and
// WaitsFor is that class; a pod that has had none has the flag policy-unknown.
type LocalEndpoint struct {
	Addr         netip.Addr   `json:"addr"`
	Endpoint     Name         `json:"endpoint"`
	IfIndex      uint32       `json:"ifIndex"` // host side of the pod's veth, 0 while not known
	Device       string       `json:"device,omitempty"`
	Master       int          `json:"master,omitempty"` // interface index of the bridge, bond or VRF of the device, 0 if none
	MAC          string       `json:"mac,omitempty"`    // of the pod's own interface
	SubjectClass uint32       `json:"subjectClass"`
	WaitsFor     uint32       `json:"waitsFor,omitempty"`
	EgressClass  uint32       `json:"egressClass"`
	Flags        bpf.PodFlags `json:"flags"`
	Epoch        uint32       `json:"epoch"` // raised when the kernel comes to choose or forbid traffic of the address that it did not

	// What the epoch was given for. SourceClass is the egress class that the
	// kernel has of the address, 0 for none. Judged is of the destinations that
	// its rules send to gateways, zero for none: connections that are alive with
	// this epoch may go to all others by their ordinary way. Held is not zero
	// while there are none yet to any destination of a policy, since the address
	// was held from its beginning: then it is one more than the revision of
	// map-covered, by which the kernel holds it.
	SourceClass uint32     `json:"sourceClass,omitempty"`
	Judged      bpf.Digest `json:"judged"`
	Held        uint64     `json:"held,omitempty"`

	Reason string `json:"reason,omitempty"` // why there is no device

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (e *LocalEndpoint) Equal(o *LocalEndpoint) bool {
	a, b := *e, *o
	a.Status, b.Status = reconciler.Status{}, reconciler.Status{}
	return a == b
}

// MapKey is the key in sluice_pods.
func (e *LocalEndpoint) MapKey() bpf.PodKey { return bpf.PodKey{Addr: bpf.AddressFrom(e.Addr)} }

// MapValue is the value in sluice_pods.
func (e *LocalEndpoint) MapValue() bpf.PodValue {
	return bpf.PodValue{IfIndex: e.IfIndex, SubjectClass: e.SubjectClass, Epoch: e.Epoch, Flags: e.Flags, MAC: macBytes(e.MAC)}
}

func macBytes(text string) (mac [6]byte) {
	if hw, err := net.ParseMAC(text); err == nil && len(hw) == len(mac) {
		copy(mac[:], hw)
	}
	return mac
}

// TableHeader implements [statedb.TableWritable].
func (*LocalEndpoint) TableHeader() []string {
	return []string{"Address", "Endpoint", "Device", "MAC", "SubjectClass", "WaitsFor", "EgressClass", "Flags", "Epoch", "Reason", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (e *LocalEndpoint) TableRow() []string {
	return []string{
		e.Addr.String(), e.Endpoint.String(), orDash(e.Device), orDash(e.MAC),
		strconv.FormatUint(uint64(e.SubjectClass), 10), numberColumn(e.WaitsFor),
		strconv.FormatUint(uint64(e.EgressClass), 10), e.Flags.String(), strconv.FormatUint(uint64(e.Epoch), 10), orDash(e.Reason), e.Status.Kind.String(), orDash(e.Status.GetError()),
	}
}

var (
	localEndpointAddrIndex = UniqueIndex("addr", AddrKeys,
		func(e *LocalEndpoint) netip.Addr { return e.Addr })

	localEndpointSourceClassIndex = IndexIf("source-class", Uint32Keys,
		func(e *LocalEndpoint) (uint32, bool) { return e.SourceClass, e.SourceClass != 0 })

	localEndpointSubjectClassIndex = IndexIf("subject-class", Uint32Keys,
		func(e *LocalEndpoint) (uint32, bool) { return e.SubjectClass, e.SubjectClass != 0 })

	localEndpointWaitsForIndex = IndexIf("waits-for", Uint32Keys,
		func(e *LocalEndpoint) (uint32, bool) { return e.WaitsFor, e.WaitsFor != 0 })

	localEndpointDeviceIndex = IndexEach("device", IntKeys, func(e *LocalEndpoint) []int {
		switch {
		case e.IfIndex == 0:
			return nil
		case e.Master == 0:
			return []int{int(e.IfIndex)}
		}
		return []int{int(e.IfIndex), e.Master}
	})

	// LocalEndpointsBySourceClass queries the local pods that the kernel has in
	// an egress class.
	LocalEndpointsBySourceClass = localEndpointSourceClassIndex.Query

	// LocalEndpointsBySubjectClass queries the local pods that are to be in a
	// subject class, for now at least. It does not find those in none, 0.
	LocalEndpointsBySubjectClass = localEndpointSubjectClassIndex.Query

	// LocalEndpointsWaitingFor queries the local pods that are to be in a subject
	// class when that is ready.
	LocalEndpointsWaitingFor = localEndpointWaitsForIndex.Query

	// LocalEndpointsByDevice queries the local pods to which a device leads, or
	// behind a bridge, by its interface index.
	LocalEndpointsByDevice = localEndpointDeviceIndex.Query

	// LocalEndpointByAddr queries the local pod that has an address.
	LocalEndpointByAddr = localEndpointAddrIndex.Query
)

// NewLocalEndpointTable creates the table of local pods by address.
var NewLocalEndpointTable = Declare(
	"local-endpoints", localEndpointAddrIndex, localEndpointSourceClassIndex,
	localEndpointSubjectClassIndex, localEndpointWaitsForIndex, localEndpointDeviceIndex,
)
