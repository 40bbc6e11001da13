// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"

	"github.com/sluice-net/sluice/bpf"
)

// EgressExit is an address of this node that pods' traffic leaves with, and the
// device by which it does. An entry of sluice_exits.
type EgressExit struct {
	Addr      netip.Addr    `json:"addr"`
	IfIndex   uint32        `json:"ifIndex"`
	Device    string        `json:"device"`
	Flags     bpf.ExitFlags `json:"flags"`
	Lingering bool          `json:"lingering"` // no gateway uses it any more, but connections may

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (e *EgressExit) Equal(o *EgressExit) bool { return sameButStatus(e, o) }

// MapKey is the key in sluice_exits.
func (e *EgressExit) MapKey() bpf.ExitKey { return bpf.ExitKey{Addr: bpf.AddressFrom(e.Addr)} }

// MapValue is the value in sluice_exits.
func (e *EgressExit) MapValue() bpf.ExitValue {
	return bpf.ExitValue{IfIndex: e.IfIndex, Flags: e.Flags}
}

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
	egressExitAddrIndex = UniqueIndex("addr", AddrKeys,
		func(e *EgressExit) netip.Addr { return e.Addr })

	egressExitDeviceIndex = Index("device", StringKeys,
		func(e *EgressExit) string { return e.Device })

	egressExitIfIndexIndex = Index("ifindex", Uint32Keys,
		func(e *EgressExit) uint32 { return e.IfIndex })

	// EgressExitByAddr queries an exit by its address.
	EgressExitByAddr = egressExitAddrIndex.Query

	// EgressExitsByDevice queries the exits by a device, by its name.
	EgressExitsByDevice = egressExitDeviceIndex.Query

	// EgressExitsByIfIndex queries the exits by a device, by its interface index.
	EgressExitsByIfIndex = egressExitIfIndexIndex.Query
)

// NewEgressExitTable creates the table of the egress addresses of this node.
var NewEgressExitTable = Declare(
	"egress-exits", egressExitAddrIndex, egressExitDeviceIndex, egressExitIfIndexIndex,
)
