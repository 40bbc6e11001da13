// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
)

// EgressIPLease is an egress address that moves, and that this node shall have or may still have:
// an entry of sluice_floating, which is there before the address is at a device, and until it is
// gone from there.
type EgressIPLease struct {
	Addr       netip.Addr `json:"addr"`
	IfIndex    uint32     `json:"ifIndex"` // device that has the address, or is to have it
	Deadline   uint64     `json:"deadline"`
	Generation uint32     `json:"generation"`        // how often the lease has changed hands
	Assigned   bool       `json:"assigned"`          // it is at the device
	Problem    string     `json:"problem,omitempty"` // why it is not, empty if it is being done

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows say the same, whatever their status.
func (l *EgressIPLease) Equal(o *EgressIPLease) bool {
	a, b := *l, *o
	a.Status, b.Status = reconciler.Status{}, reconciler.Status{}
	return a == b
}

// MapKey is the key in sluice_floating.
func (l *EgressIPLease) MapKey() bpf.ExitKey { return bpf.ExitKey{Addr: bpf.AddressFrom(l.Addr)} }

// MapValue is the value in sluice_floating.
func (l *EgressIPLease) MapValue() bpf.FloatingValue {
	return bpf.FloatingValue{Deadline: l.Deadline, Generation: l.Generation, IfIndex: l.IfIndex}
}

// TableHeader implements [statedb.TableWritable].
func (*EgressIPLease) TableHeader() []string {
	return []string{
		"Address", "IfIndex", "Held", "Generation", "Assigned", "Problem", "Status", "Error",
	}
}

// TableRow implements [statedb.TableWritable].
func (l *EgressIPLease) TableRow() []string {
	return []string{
		l.Addr.String(), strconv.FormatUint(uint64(l.IfIndex), 10),
		strconv.FormatBool(l.Deadline != 0), strconv.FormatUint(uint64(l.Generation), 10),
		strconv.FormatBool(l.Assigned), orDash(l.Problem),
		l.Status.Kind.String(), orDash(l.Status.GetError()),
	}
}

var (
	egressIPLeaseAddrIndex = UniqueIndex("addr", AddrKeys,
		func(l *EgressIPLease) netip.Addr { return l.Addr })

	egressIPLeaseIfIndexIndex = Index("ifindex", Uint32Keys,
		func(l *EgressIPLease) uint32 { return l.IfIndex })

	// EgressIPLeaseByAddr queries the lease of an address.
	EgressIPLeaseByAddr = egressIPLeaseAddrIndex.Query

	// EgressIPLeasesByIfIndex queries the leases of the addresses of a device.
	EgressIPLeasesByIfIndex = egressIPLeaseIfIndexIndex.Query
)

// NewEgressIPLeaseTable creates the table of leases of egress addresses that move.
var NewEgressIPLeaseTable = Declare(
	"egress-ip-leases", egressIPLeaseAddrIndex, egressIPLeaseIfIndexIndex,
)
