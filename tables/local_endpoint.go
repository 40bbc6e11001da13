// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
)

// LocalEndpoint is an address of a pod on this node. An entry of sluice_pods.
type LocalEndpoint struct {
	Addr         netip.Addr        `json:"addr"`
	Endpoint     Name              `json:"endpoint"`
	IfIndex      uint32            `json:"ifIndex"` // host side of the pod's veth, 0 while not known
	Device       string            `json:"device,omitempty"`
	MAC          string            `json:"mac,omitempty"` // of the pod's own interface
	SubjectClass uint32            `json:"subjectClass"`
	EgressClass  uint32            `json:"egressClass"`
	Flags        bpf.PodFlags      `json:"flags"`
	Reason       string            `json:"reason,omitempty"` // why there is no device
	Status       reconciler.Status `json:"status"`
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
	return bpf.PodValue{IfIndex: e.IfIndex, SubjectClass: e.SubjectClass, Flags: e.Flags, MAC: macBytes(e.MAC)}
}

func macBytes(text string) (mac [6]byte) {
	if hw, err := net.ParseMAC(text); err == nil && len(hw) == len(mac) {
		copy(mac[:], hw)
	}
	return mac
}

// Clone returns a shallow copy.
func (e *LocalEndpoint) Clone() *LocalEndpoint { c := *e; return &c }

// SetStatus sets the reconciliation status.
func (e *LocalEndpoint) SetStatus(s reconciler.Status) *LocalEndpoint { e.Status = s; return e }

// GetStatus returns the reconciliation status.
func (e *LocalEndpoint) GetStatus() reconciler.Status { return e.Status }

// TableHeader implements [statedb.TableWritable].
func (*LocalEndpoint) TableHeader() []string {
	return []string{"Address", "Endpoint", "Device", "MAC", "EgressClass", "Flags", "Reason", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (e *LocalEndpoint) TableRow() []string {
	return []string{
		e.Addr.String(), e.Endpoint.String(), orDash(e.Device), orDash(e.MAC), strconv.FormatUint(uint64(e.EgressClass), 10), e.Flags.String(),
		orDash(e.Reason), e.Status.Kind.String(), orDash(e.Status.GetError()),
	}
}

var (
	localEndpointAddrIndex = statedb.Index[*LocalEndpoint, netip.Addr]{
		Name:       "addr",
		FromObject: func(e *LocalEndpoint) index.KeySet { return index.NewKeySet(index.NetIPAddr(e.Addr)) },
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
		Unique:     true,
	}

	// LocalEndpointByAddr queries the local pod that has an address.
	LocalEndpointByAddr = localEndpointAddrIndex.Query
)

// NewLocalEndpointTable creates the table of local pods by address.
func NewLocalEndpointTable(db *statedb.DB) (statedb.RWTable[*LocalEndpoint], error) {
	return statedb.NewTable(db, "local-endpoints", localEndpointAddrIndex)
}
