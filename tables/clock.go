// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"time"

	"github.com/cilium/statedb"
)

// Clock is the time, for rules, which are functions of tables alone. There is one row.
type Clock struct {
	Now time.Time `json:"now"` // in UTC, whole seconds
}

// ClockInterval is how late the clock may be.
const ClockInterval = 10 * time.Second

// TableHeader implements [statedb.TableWritable].
func (*Clock) TableHeader() []string { return []string{"Now"} }

// TableRow implements [statedb.TableWritable].
func (c *Clock) TableRow() []string { return []string{c.Now.Format(time.RFC3339)} }

// Now returns the time of a snapshot, zero if it has none.
func Now(txn statedb.ReadTxn, clock statedb.Table[*Clock]) time.Time {
	for c := range clock.All(txn) {
		return c.Now
	}
	return time.Time{}
}

var clockIndex = UniqueIndex("clock", BoolKeys, func(*Clock) bool { return true })

// NewClockTable creates the table of the time.
var NewClockTable = Declare("clock", clockIndex)
