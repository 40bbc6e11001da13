// SPDX-License-Identifier: Apache-2.0

package tables

import "strconv"

// PolicyUsage is what the rulesets with policies of a namespace use of sluice_policy and
// sluice_verdicts. What only cluster-wide policies use has no namespace.
type PolicyUsage struct {
	Namespace string `json:"namespace,omitempty"`
	Entries   int    `json:"entries"`  // of sluice_policy
	Verdicts  int    `json:"verdicts"` // entries of sluice_verdicts
}

// TableHeader implements [statedb.TableWritable].
func (*PolicyUsage) TableHeader() []string {
	return []string{"Namespace", "Entries", "Verdicts"}
}

// TableRow implements [statedb.TableWritable].
func (u *PolicyUsage) TableRow() []string {
	return []string{orDash(u.Namespace), strconv.Itoa(u.Entries), strconv.Itoa(u.Verdicts)}
}

var policyUsageNamespace = UniqueIndex("namespace", StringKeys,
	func(u *PolicyUsage) string { return u.Namespace })

// PolicyUsageByNamespace queries what a namespace uses.
var PolicyUsageByNamespace = policyUsageNamespace.Query

// NewPolicyUsageTable creates the table of what namespaces use.
var NewPolicyUsageTable = Declare("policy-usage", policyUsageNamespace)

// RulesetSize is how many entries a ruleset needs.
type RulesetSize struct {
	Entries  int `json:"entries"`  // of sluice_policy
	Verdicts int `json:"verdicts"` // of sluice_verdicts
}

// RulesetRefusal says that sluice_policy or sluice_verdicts has no room for a ruleset. What is
// computed of it stays until its pods are isolated instead.
type RulesetRefusal struct {
	Ruleset uint32 `json:"ruleset"`

	// Needs is what the ruleset has used, and what was too much.
	Needs RulesetSize `json:"needs"`
}

// TableHeader implements [statedb.TableWritable].
func (*RulesetRefusal) TableHeader() []string { return []string{"Ruleset", "Entries", "Verdicts"} }

// TableRow implements [statedb.TableWritable].
func (r *RulesetRefusal) TableRow() []string {
	return []string{
		number(r.Ruleset), strconv.Itoa(r.Needs.Entries), strconv.Itoa(r.Needs.Verdicts),
	}
}

var rulesetRefusalRuleset = UniqueIndex("ruleset", Uint32Keys,
	func(r *RulesetRefusal) uint32 { return r.Ruleset })

// RefusalOfRuleset queries whether a ruleset is refused.
var RefusalOfRuleset = rulesetRefusalRuleset.Query

// NewRulesetRefusalTable creates the table of refused rulesets.
var NewRulesetRefusalTable = Declare("ruleset-refusals", rulesetRefusalRuleset)
