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

// EgressSource is an address whose traffic egress policies concern: of a pod
// on this node, or of one that this node may be the gateway of. An entry of
// sluice_sources.
type EgressSource struct {
	Addr     netip.Addr        `json:"addr"`
	Class    uint32            `json:"class"`
	Endpoint Name              `json:"endpoint"`
	Node     string            `json:"node"`
	Status   reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (s *EgressSource) Equal(o *EgressSource) bool {
	return s.Addr == o.Addr && s.Class == o.Class && s.Endpoint == o.Endpoint && s.Node == o.Node
}

// MapKey is the key in sluice_sources.
func (s *EgressSource) MapKey() bpf.SourceKey { return bpf.SourceKey{Addr: bpf.AddressFrom(s.Addr)} }

// MapValue is the value in sluice_sources.
func (s *EgressSource) MapValue() bpf.SourceValue { return bpf.SourceValue{Class: s.Class} }

// Clone returns a shallow copy.
func (s *EgressSource) Clone() *EgressSource { c := *s; return &c }

// SetStatus sets the reconciliation status.
func (s *EgressSource) SetStatus(status reconciler.Status) *EgressSource { s.Status = status; return s }

// GetStatus returns the reconciliation status.
func (s *EgressSource) GetStatus() reconciler.Status { return s.Status }

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
	egressSourceAddrIndex = statedb.Index[*EgressSource, netip.Addr]{
		Name:       "addr",
		FromObject: func(s *EgressSource) index.KeySet { return index.NewKeySet(index.NetIPAddr(s.Addr)) },
		FromKey:    index.NetIPAddr,
		FromString: index.NetIPAddrString,
		Unique:     true,
	}

	// EgressSourceByAddr queries the egress class of an address.
	EgressSourceByAddr = egressSourceAddrIndex.Query
)

// NewEgressSourceTable creates the table of egress classes by address.
func NewEgressSourceTable(db *statedb.DB) (statedb.RWTable[*EgressSource], error) {
	return statedb.NewTable(db, "egress-sources", egressSourceAddrIndex)
}
