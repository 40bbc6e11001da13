// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
)

// Sysctl is a kernel parameter that the agent needs to have a value. Its
// former value is restored when the row goes.
type Sysctl struct {
	Name   string            `json:"name"` // path below /proc/sys, such as net/ipv4/conf/eth0/rp_filter
	Value  string            `json:"value"`
	Origin string            `json:"origin"` // what needs it
	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (s *Sysctl) Equal(o *Sysctl) bool {
	return s.Name == o.Name && s.Value == o.Value && s.Origin == o.Origin
}

// Clone returns a shallow copy.
func (s *Sysctl) Clone() *Sysctl { c := *s; return &c }

// SetStatus sets the reconciliation status.
func (s *Sysctl) SetStatus(status reconciler.Status) *Sysctl { s.Status = status; return s }

// GetStatus returns the reconciliation status.
func (s *Sysctl) GetStatus() reconciler.Status { return s.Status }

// TableHeader implements [statedb.TableWritable].
func (*Sysctl) TableHeader() []string { return []string{"Name", "Value", "Origin", "Status", "Error"} }

// TableRow implements [statedb.TableWritable].
func (s *Sysctl) TableRow() []string {
	return []string{s.Name, s.Value, s.Origin, s.Status.Kind.String(), orDash(s.Status.GetError())}
}

var (
	sysctlNameIndex = statedb.Index[*Sysctl, string]{
		Name:       "name",
		FromObject: func(s *Sysctl) index.KeySet { return index.NewKeySet(index.String(s.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}

	// SysctlByName queries a kernel parameter by its path below /proc/sys.
	SysctlByName = sysctlNameIndex.Query
)

// NewSysctlTable creates the table of kernel parameters.
func NewSysctlTable(db *statedb.DB) (statedb.RWTable[*Sysctl], error) {
	return statedb.NewTable(db, "sysctls", sysctlNameIndex)
}
