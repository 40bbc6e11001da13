// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
)

// EgressExit is an address of this node that pods' traffic leaves with, and the
// device by which it does. An entry of sluice_exits.
type EgressExit struct {
	Addr      netip.Addr        `json:"addr"`
	IfIndex   uint32            `json:"ifIndex"`
	Device    string            `json:"device"`
	Flags     bpf.ExitFlags     `json:"flags"`
	Lingering bool              `json:"lingering"` // no gateway uses it any more, but connections may
	Status    reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (e *EgressExit) Equal(o *EgressExit) bool {
	a, b := *e, *o
	a.Status, b.Status = reconciler.Status{}, reconciler.Status{}
	return a == b
}

// MapKey is the key in sluice_exits.
func (e *EgressExit) MapKey() bpf.ExitKey { return bpf.ExitKey{Addr: bpf.AddressFrom(e.Addr)} }

// MapValue is the value in sluice_exits.
func (e *EgressExit) MapValue() bpf.ExitValue {
	return bpf.ExitValue{IfIndex: e.IfIndex, Flags: e.Flags}
}

// Clone returns a shallow copy.
func (e *EgressExit) Clone() *EgressExit { c := *e; return &c }

// SetStatus sets the reconciliation status.
func (e *EgressExit) SetStatus(s reconciler.Status) *EgressExit { e.Status = s; return e }

// GetStatus returns the reconciliation status.
func (e *EgressExit) GetStatus() reconciler.Status { return e.Status }

// TableHeader implements [statedb.TableWritable].
func (*EgressExit) TableHeader() []string {
	return []string{"Address", "Device", "Flags", "Lingering", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (e *EgressExit) TableRow() []string {
	return []string{
		e.Addr.String(), orDash(e.Device), e.Flags.String(), strconv.FormatBool(e.Lingering),
		e.Status.Kind.String(), orDash(e.Status.GetError()),
	}
}

var (
	egressExitAddrIndex = statedb.Index[*EgressExit, netip.Addr]{
		Name:       "addr",
		FromObject: func(e *EgressExit) index.KeySet { return index.NewKeySet(index.NetIPAddr(e.Addr)) },
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
		Unique:     true,
	}

	egressExitDeviceIndex = statedb.Index[*EgressExit, string]{
		Name:       "device",
		FromObject: func(e *EgressExit) index.KeySet { return index.NewKeySet(index.String(e.Device)) },
		FromKey:    index.String,
		FromString: index.FromString,
	}

	egressExitIfIndexIndex = statedb.Index[*EgressExit, uint32]{
		Name:       "ifindex",
		FromObject: func(e *EgressExit) index.KeySet { return index.NewKeySet(index.Uint32(e.IfIndex)) },
		FromKey:    index.Uint32,
		FromString: index.Uint32String,
	}

	// EgressExitByAddr queries an exit by its address.
	EgressExitByAddr = egressExitAddrIndex.Query

	// EgressExitsByDevice queries the exits by a device, by its name.
	EgressExitsByDevice = egressExitDeviceIndex.Query

	// EgressExitsByIfIndex queries the exits by a device, by its interface index.
	EgressExitsByIfIndex = egressExitIfIndexIndex.Query
)

// NewEgressExitTable creates the table of the egress addresses of this node.
func NewEgressExitTable(db *statedb.DB) (statedb.RWTable[*EgressExit], error) {
	return statedb.NewTable(db, "egress-exits", egressExitAddrIndex, egressExitDeviceIndex, egressExitIfIndexIndex)
}
