// SPDX-License-Identifier: Apache-2.0

package tables

// Sysctl is a kernel parameter that the agent needs to have a value. Its
// former value is restored when the row goes.
type Sysctl struct {
	Name   string `json:"name"` // path below /proc/sys, such as net/ipv4/conf/eth0/rp_filter
	Value  string `json:"value"`
	Origin string `json:"origin"` // what needs it

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (s *Sysctl) Equal(o *Sysctl) bool {
	return s.Name == o.Name && s.Value == o.Value && s.Origin == o.Origin
}

// TableHeader implements [statedb.TableWritable].
func (*Sysctl) TableHeader() []string { return []string{"Name", "Value", "Origin", "Status", "Error"} }

// TableRow implements [statedb.TableWritable].
func (s *Sysctl) TableRow() []string {
	return []string{s.Name, s.Value, s.Origin, s.Status.Kind.String(), orDash(s.Status.GetError())}
}

var (
	sysctlNameIndex = UniqueIndex("name", StringKeys, func(s *Sysctl) string { return s.Name })

	// SysctlByName queries a kernel parameter by its path below /proc/sys.
	SysctlByName = sysctlNameIndex.Query
)

// NewSysctlTable creates the table of kernel parameters.
var NewSysctlTable = Declare("sysctls", sysctlNameIndex)
