// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"

	"github.com/sluice-net/sluice/bpf"
)

// CoveredPrefix is a destination of some egress policy, whichever pods that selects. An entry of
// sluice_covered: the programs drop traffic there from pods that are not ready in the kernel.
type CoveredPrefix struct {
	Prefix   netip.Prefix `json:"prefix"`
	Policies []string     `json:"policies"` // that name it, sorted

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (c *CoveredPrefix) Equal(o *CoveredPrefix) bool {
	return c.Prefix == o.Prefix && slices.Equal(c.Policies, o.Policies)
}

// MapKey is the key in sluice_covered.
func (c *CoveredPrefix) MapKey() bpf.CoveredKey { return bpf.CoveredKeyFrom(c.Prefix) }

// MapValue is the value in sluice_covered.
func (c *CoveredPrefix) MapValue() bpf.CoveredValue { return bpf.CoveredValue{Covered: 1} }

// TableHeader implements [statedb.TableWritable].
func (*CoveredPrefix) TableHeader() []string {
	return []string{"Prefix", "Policies", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (c *CoveredPrefix) TableRow() []string {
	return []string{
		c.Prefix.String(), listColumn(c.Policies, ", "), c.Status.Kind.String(),
		orDash(c.Status.GetError()),
	}
}

var (
	coveredPrefixIndex = UniqueIndex("prefix", PrefixKeys,
		func(c *CoveredPrefix) netip.Prefix { return c.Prefix })

	// CoveredPrefixByPrefix queries a covered prefix.
	CoveredPrefixByPrefix = coveredPrefixIndex.Query
)

// NewCoveredPrefixTable creates the table of the destinations of egress policies.
var NewCoveredPrefixTable = Declare("covered-prefixes", coveredPrefixIndex)
