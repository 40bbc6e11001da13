// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// ClassReadiness says, for a class or a gateway group, how much of it the
// kernel has. It is what orders the writes of different maps: see
// reconcilers/egress for what waits for what.
type ClassReadiness struct {
	bpf.ClassKey `yaml:",inline"`

	Wanted     bool       `json:"wanted"`     // there is such a class or group
	Digest     bpf.Digest `json:"digest"`     // what it stands for, as far as this row knows
	Registered bool       `json:"registered"` // map-classes has the digest
	Complete   bool       `json:"complete"`   // the entries desired of it are those that it is to have
	Of         uint64     `json:"of"`         // revision of the class's row that all this is of: in egress-classes, or in class-members
	RowsWanted int        `json:"rowsWanted"` // entries desired of it
	RowsReady  int        `json:"rowsReady"`  // of these, the kernel has as desired
	RowsExtra  int        `json:"rowsExtra"`  // entries in the kernel that are not desired, or otherwise
	Leaving    bool       `json:"leaving"`    // the kernel has addresses in the class that are about to leave it
	Used       bool       `json:"used"`       // not wanted, but the kernel has addresses in the class or rules to the group

	// LeavingTo are the egress classes that these addresses are to go to, in order.
	LeavingTo []uint32 `json:"leavingTo,omitempty"`
}

// Equal reports whether two rows say the same.
func (r *ClassReadiness) Equal(o *ClassReadiness) bool {
	return r.ClassKey == o.ClassKey && r.Wanted == o.Wanted && r.Digest == o.Digest && r.Registered == o.Registered &&
		r.Complete == o.Complete && r.Of == o.Of && r.RowsWanted == o.RowsWanted && r.RowsReady == o.RowsReady &&
		r.RowsExtra == o.RowsExtra && r.Leaving == o.Leaving && r.Used == o.Used && slices.Equal(r.LeavingTo, o.LeavingTo)
}

// Ready reports whether users may be put into the class: all that is desired
// of it is in the kernel, and nothing else.
func (r *ClassReadiness) Ready() bool {
	return r.Wanted && r.Registered && r.Complete && r.RowsReady == r.RowsWanted && r.RowsExtra == 0
}

// TableHeader implements [statedb.TableWritable].
func (*ClassReadiness) TableHeader() []string {
	return []string{"Role", "Number", "Ready", "Wanted", "Registered", "Complete", "Rows", "Extra", "Leaving", "Used"}
}

// TableRow implements [statedb.TableWritable].
func (r *ClassReadiness) TableRow() []string {
	return []string{
		r.Role.String(), strconv.FormatUint(uint64(r.Number), 10), strconv.FormatBool(r.Ready()), strconv.FormatBool(r.Wanted),
		strconv.FormatBool(r.Registered), strconv.FormatBool(r.Complete), fmt.Sprintf("%d/%d", r.RowsReady, r.RowsWanted),
		strconv.Itoa(r.RowsExtra), strconv.FormatBool(r.Leaving), strconv.FormatBool(r.Used),
	}
}

var (
	classReadinessKeyIndex = UniqueIndex("key", classKeys,
		func(r *ClassReadiness) bpf.ClassKey { return r.ClassKey })

	classReadinessLeavingToIndex = IndexEach("leaving-to", Uint32Keys,
		func(r *ClassReadiness) []uint32 { return r.LeavingTo })

	// ClassReadinessByKey queries the readiness of a class or gateway group.
	ClassReadinessByKey = classReadinessKeyIndex.Query

	// ClassReadinessLeavingTo queries that of the egress classes that addresses are to
	// leave for another one.
	ClassReadinessLeavingTo = classReadinessLeavingToIndex.Query
)

var classKeys = KeysOf(classKey, classKeyFromString)

func classKey(k bpf.ClassKey) index.Key {
	return append(index.Uint32(uint32(k.Role)), index.Uint32(k.Number)...)
}

// classKeyFromString parses the form role/number.
func classKeyFromString(s string) (index.Key, error) {
	var role, number string
	for i := range s {
		if s[i] == '/' {
			role, number = s[:i], s[i+1:]
		}
	}
	var k bpf.ClassKey
	if err := k.Role.UnmarshalText([]byte(role)); err != nil {
		return nil, fmt.Errorf("parse %q as role/number: %w", s, err)
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("parse %q as role/number: %w", s, err)
	}
	k.Number = uint32(n)
	return classKey(k), nil
}

// NewClassReadinessTable creates the table of what the kernel has of each class.
var NewClassReadinessTable = Declare(
	"class-readiness", classReadinessKeyIndex, classReadinessLeavingToIndex,
)
