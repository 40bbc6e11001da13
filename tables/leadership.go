// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"

	"github.com/cilium/statedb"
)

// Leadership says which agent writes the status of objects, as far as this one
// knows: while another does, it looks from time to time only.
type Leadership struct {
	Lease string `json:"lease"` // namespace and name
	// node of the agent that held it when it was last looked at
	Holder  string `json:"holder,omitempty"`
	Leading bool   `json:"leading"`         // this agent holds it
	Error   string `json:"error,omitempty"` // why it cannot be looked at
}

// TableHeader implements [statedb.TableWritable].
func (*Leadership) TableHeader() []string {
	return []string{"Lease", "Holder", "Leading", "Problem"}
}

// TableRow implements [statedb.TableWritable].
func (l *Leadership) TableRow() []string {
	return []string{l.Lease, orDash(l.Holder), strconv.FormatBool(l.Leading), orDash(l.Error)}
}

var (
	leadershipLeaseIndex = UniqueIndex("lease", StringKeys,
		func(l *Leadership) string { return l.Lease })

	// LeadershipByLease queries the holder of a lease.
	LeadershipByLease = leadershipLeaseIndex.Query
)

// Leads reports whether this agent holds the lease. There is no more than one.
func Leads(txn statedb.ReadTxn, table statedb.Table[*Leadership]) bool {
	for l := range table.All(txn) {
		return l.Leading
	}
	return false
}

// NewLeadershipTable creates the table of which agent writes the status of objects.
var NewLeadershipTable = Declare("leadership", leadershipLeaseIndex)

// Reporting says whether this agent reports the status of policies in its NodeReport, and takes
// part in writing the status of objects.
type Reporting struct{ Enabled bool }

// NodeReportSource is what NodeReports are called in table object-sources, while
// they are read: by the operator that leads.
const NodeReportSource = "nodereports.sluice.io"
