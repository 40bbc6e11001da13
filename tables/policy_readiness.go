// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// PolicyReadiness says, for a subject or peer class, whether addresses may be
// put into it, and how much of its verdicts the kernel has.
type PolicyReadiness struct {
	bpf.ClassKey `yaml:",inline"`

	Digest     bpf.Digest `json:"digest"`     // what the class stands for, as far as this row knows
	Registered bool       `json:"registered"` // map-classes has the digest

	// Ready is set when the class is registered and the kernel has had all its
	// verdicts at once. It stays while the digest does: verdicts that change later
	// do so for all addresses in the class alike.
	Ready bool `json:"ready"`

	RowsWanted int `json:"rowsWanted"` // verdicts that the rules in force ask for
	RowsReady  int `json:"rowsReady"`  // of these, the kernel has as wanted
	RowsExtra  int `json:"rowsExtra"`  // verdicts in the kernel that are not wanted, or otherwise
}

// Settled reports whether the kernel's verdicts are those that are wanted.
func (r *PolicyReadiness) Settled() bool { return r.RowsReady == r.RowsWanted && r.RowsExtra == 0 }

// TableHeader implements [statedb.TableWritable].
func (*PolicyReadiness) TableHeader() []string {
	return []string{"Role", "Number", "Ready", "Registered", "Rows", "Extra"}
}

// TableRow implements [statedb.TableWritable].
func (r *PolicyReadiness) TableRow() []string {
	return []string{
		r.Role.String(), strconv.FormatUint(uint64(r.Number), 10), strconv.FormatBool(r.Ready),
		strconv.FormatBool(r.Registered), fmt.Sprintf("%d/%d", r.RowsReady, r.RowsWanted), strconv.Itoa(r.RowsExtra),
	}
}

var (
	policyReadinessKeyIndex = UniqueIndex("key", classKeys,
		func(r *PolicyReadiness) bpf.ClassKey { return r.ClassKey })

	// PolicyReadinessByKey queries the readiness of a class.
	PolicyReadinessByKey = policyReadinessKeyIndex.Query
)

// ClassIsReady reports whether addresses may be put into a class whose members
// have a signature.
func ClassIsReady(txn statedb.ReadTxn, readiness statedb.Table[*PolicyReadiness], key bpf.ClassKey, digest bpf.Digest) bool {
	if key.Number == 0 {
		return true
	}
	r, _, found := readiness.Get(txn, PolicyReadinessByKey(key))
	return found && r.Ready && r.Digest == digest
}

// NewPolicyReadinessTable creates the table of what the kernel has of each class
// of network policies.
var NewPolicyReadinessTable = Declare("policy-readiness", policyReadinessKeyIndex)
