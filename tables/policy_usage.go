// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// PolicyUsage is what the rulesets with policies of a namespace use of sluice_policy and
// sluice_verdicts. What only cluster-wide policies use has no namespace.
type PolicyUsage struct {
	Namespace string `json:"namespace,omitempty"`
	Entries   int    `json:"entries"`  // of sluice_policy
	Verdicts  int    `json:"verdicts"` // entries of sluice_verdicts

	// Closed counts the directions of rulesets that are closed: see [PolicyEntry].
	Closed int `json:"closed"`
}

// ClosedBy says why a direction of a ruleset is closed, empty if none is.
func ClosedBy(txn statedb.ReadTxn, entries statedb.Table[*PolicyEntry], ruleset uint32) string {
	for d := range bpf.Direction(bpf.Directions) {
		key := bpf.PolicyKey{Ruleset: ruleset, Class: bpf.AnyClass, Direction: d}
		e, _, found := entries.Get(txn, PolicyEntryByKey(key))
		if !found || e.Closed == 0 {
			continue
		}
		of := "of namespace " + e.Namespace
		if e.Namespace == "" {
			of = "of all namespaces"
		}
		return fmt.Sprintf("%s in part: the maps have no room for what policies %s say of more "+
			"peers, which are denied; see policy-usage", d, of)
	}
	return ""
}

// TableHeader implements [statedb.TableWritable].
func (*PolicyUsage) TableHeader() []string {
	return []string{"Namespace", "Entries", "Verdicts", "Closed"}
}

// TableRow implements [statedb.TableWritable].
func (u *PolicyUsage) TableRow() []string {
	return []string{
		orDash(u.Namespace), strconv.Itoa(u.Entries), strconv.Itoa(u.Verdicts),
		strconv.Itoa(u.Closed),
	}
}

var policyUsageNamespace = UniqueIndex("namespace", StringKeys,
	func(u *PolicyUsage) string { return u.Namespace })

// PolicyUsageByNamespace queries what a namespace uses.
var PolicyUsageByNamespace = policyUsageNamespace.Query

// NewPolicyUsageTable creates the table of what namespaces use.
var NewPolicyUsageTable = Declare("policy-usage", policyUsageNamespace)
