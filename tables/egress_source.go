// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"

	"github.com/sluice-net/sluice/bpf"
)

// EgressSource is an address whose traffic egress policies concern: of a pod
// on this node, or of one that this node may be the gateway of. An entry of
// sluice_sources.
type EgressSource struct {
	Addr     netip.Addr `json:"addr"`
	Class    uint32     `json:"class"`
	Endpoint Name       `json:"endpoint"`
	Node     string     `json:"node"`

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (s *EgressSource) Equal(o *EgressSource) bool {
	return s.Addr == o.Addr && s.Class == o.Class && s.Endpoint == o.Endpoint && s.Node == o.Node
}

// MapKey is the key in sluice_sources.
func (s *EgressSource) MapKey() bpf.SourceKey { return bpf.SourceKey{Addr: bpf.AddressFrom(s.Addr)} }

// MapValue is the value in sluice_sources.
func (s *EgressSource) MapValue() bpf.SourceValue { return bpf.SourceValue{Class: s.Class} }

// TableHeader implements [statedb.TableWritable].
func (*EgressSource) TableHeader() []string {
	return []string{"Address", "Class", "Endpoint", "Node", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (s *EgressSource) TableRow() []string {
	return []string{
		s.Addr.String(), strconv.FormatUint(uint64(s.Class), 10), s.Endpoint.String(), s.Node, s.Status.Kind.String(), orDash(s.Status.GetError()),
	}
}

var (
	egressSourceAddrIndex = UniqueIndex("addr", AddrKeys,
		func(s *EgressSource) netip.Addr { return s.Addr })

	// EgressSourceByAddr queries the egress class of an address.
	EgressSourceByAddr = egressSourceAddrIndex.Query
)

// NewEgressSourceTable creates the table of egress classes by address.
var NewEgressSourceTable = Declare("egress-sources", egressSourceAddrIndex)
