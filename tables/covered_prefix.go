// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
)

// CoveredPrefix is a destination of some egress policy, whoever that chooses.
// An entry of sluice_covered: what goes there from a pod that the kernel does
// not know enough of is dropped.
type CoveredPrefix struct {
	Prefix   netip.Prefix      `json:"prefix"`
	Policies []string          `json:"policies"` // that name it, sorted
	Status   reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (c *CoveredPrefix) Equal(o *CoveredPrefix) bool {
	return c.Prefix == o.Prefix && slices.Equal(c.Policies, o.Policies)
}

// MapKey is the key in sluice_covered.
func (c *CoveredPrefix) MapKey() bpf.CoveredKey { return bpf.CoveredKeyFrom(c.Prefix) }

// MapValue is the value in sluice_covered.
func (c *CoveredPrefix) MapValue() bpf.CoveredValue { return bpf.CoveredValue{Covered: 1} }

// Clone returns a shallow copy.
func (c *CoveredPrefix) Clone() *CoveredPrefix { d := *c; return &d }

// SetStatus sets the reconciliation status.
func (c *CoveredPrefix) SetStatus(s reconciler.Status) *CoveredPrefix { c.Status = s; return c }

// GetStatus returns the reconciliation status.
func (c *CoveredPrefix) GetStatus() reconciler.Status { return c.Status }

// TableHeader implements [statedb.TableWritable].
func (*CoveredPrefix) TableHeader() []string {
	return []string{"Prefix", "Policies", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (c *CoveredPrefix) TableRow() []string {
	return []string{c.Prefix.String(), listColumn(c.Policies, ", "), c.Status.Kind.String(), orDash(c.Status.GetError())}
}

var (
	coveredPrefixIndex = statedb.Index[*CoveredPrefix, netip.Prefix]{
		Name:       "prefix",
		FromObject: func(c *CoveredPrefix) index.KeySet { return index.NewKeySet(index.NetIPPrefix(c.Prefix)) },
		FromKey:    index.NetIPPrefix,
		FromString: index.NetIPPrefixString,
		Unique:     true,
	}

	// CoveredPrefixByPrefix queries a covered prefix.
	CoveredPrefixByPrefix = coveredPrefixIndex.Query
)

// NewCoveredPrefixTable creates the table of the destinations of egress policies.
func NewCoveredPrefixTable(db *statedb.DB) (statedb.RWTable[*CoveredPrefix], error) {
	return statedb.NewTable(db, "covered-prefixes", coveredPrefixIndex)
}
