// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"
	"time"

	"github.com/cilium/statedb/index"
)

// Drop counts the packets of a pod that the programs reported to have dropped
// for a reason, in one direction, since the agent's start. The kernel reports
// fewer than it drops when there are too many; its own counters miss none.
type Drop struct {
	Pod       string    `json:"pod,omitempty"` // namespace/name; empty for packets of no pod that is known
	Direction string    `json:"direction"`     // egress or ingress, as seen from the pod
	Reason    string    `json:"reason"`
	Count     uint64    `json:"count"`
	Policy    string    `json:"policy,omitempty"` // under which the last packet was, or the rule that decided
	Packet    string    `json:"packet"`           // the last one
	Last      time.Time `json:"last"`             // when it was dropped
}

// TableHeader implements [statedb.TableWritable].
func (*Drop) TableHeader() []string {
	return []string{"Pod", "Direction", "Reason", "Count", "Policy", "Packet", "Last"}
}

// TableRow implements [statedb.TableWritable].
func (d *Drop) TableRow() []string {
	return []string{
		orDash(d.Pod), d.Direction, d.Reason, strconv.FormatUint(d.Count, 10), orDash(d.Policy), orDash(d.Packet),
		d.Last.UTC().Format(time.RFC3339),
	}
}

// DropKey is what the drops of a row have in common.
type DropKey struct{ Pod, Direction, Reason string }

// String is the index key. Names of pods have no blanks, so no two share one.
func (k DropKey) String() string { return orDash(k.Pod) + " " + k.Direction + " " + k.Reason }

// Key returns what the drops of the row have in common.
func (d *Drop) Key() DropKey { return DropKey{d.Pod, d.Direction, d.Reason} }

var (
	// With db/prefix: the drops of a pod.
	dropKeyIndex = UniqueIndex("key", KeysOf(index.Stringer[DropKey], index.FromString),
		(*Drop).Key)

	dropReasonIndex = Index("reason", StringKeys, func(d *Drop) string { return d.Reason })

	dropLastIndex = Index("last", KeysOf(timeKey, timeFromString),
		func(d *Drop) time.Time { return d.Last })

	// DropByKey queries the drops of a pod in a direction for a reason.
	DropByKey = dropKeyIndex.Query

	// DropsByReason queries the drops for a reason.
	DropsByReason = dropReasonIndex.Query

	// DropsByLast queries, with LowerBound, the rows from a time on, the oldest first.
	DropsByLast = dropLastIndex.Query
)

func timeKey(t time.Time) index.Key { return index.Int64(t.UnixNano()) }

func timeFromString(text string) (index.Key, error) {
	t, err := time.Parse(time.RFC3339, text)
	return timeKey(t), err
}

// NewDropTable creates the table of drops.
var NewDropTable = Declare("drops", dropKeyIndex, dropReasonIndex, dropLastIndex)
