// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// RuleID identifies one item of a policy in one direction.
type RuleID struct {
	Policy    PolicyID      `json:"policy"`
	Rule      int32         `json:"rule"` // index of the policy's spec
	Direction bpf.Direction `json:"direction"`
	Item      int32         `json:"item"` // index of the traffic, -1 of the default
}

// digested returns what cookies are a digest of. The zeros at its end keep cookies equal to those
// of previous versions, which counters and connections have across an upgrade.
func (id RuleID) digested() []byte {
	b := append(index.String(id.Policy.String()), 0)
	b = append(b, index.Uint32(uint32(id.Rule))...)
	b = append(b, byte(id.Direction))
	b = append(b, index.Uint32(uint32(id.Item+1))...)
	return append(b, index.Uint64(0)...)
}

// Compare orders rules by policy, then as they are in it.
func (id RuleID) Compare(o RuleID) int {
	return cmp.Or(
		cmp.Compare(id.Policy.Kind, o.Policy.Kind),
		strings.Compare(id.Policy.Namespace, o.Policy.Namespace),
		strings.Compare(id.Policy.Name.Name, o.Policy.Name.Name), cmp.Compare(id.Rule, o.Rule),
		cmp.Compare(id.Direction, o.Direction), cmp.Compare(id.Item, o.Item),
	)
}

// String is "policy direction[rule.item]", such as
// "NetworkPolicy/shop/web ingress[0.1]"; of a default "... ingress[0]".
func (id RuleID) String() string {
	var b strings.Builder
	b.WriteString(
		id.Policy.String() + " " + id.Direction.String() + "[" + strconv.Itoa(int(id.Rule)),
	)
	if id.Item >= 0 {
		b.WriteString("." + strconv.Itoa(int(id.Item)))
	}
	b.WriteString("]")
	return b.String()
}

// RuleField returns where in its object a rule is, by the rulesets that there are, desired ones
// first; empty if none has it.
func RuleField(txn statedb.ReadTxn, rulesets statedb.Table[*Ruleset], id RuleID) (field string) {
	for ruleset := range rulesets.List(txn, RulesetsByPolicy(id.Policy)) {
		for _, rule := range ruleset.Rules {
			if rule.RuleID != id {
				continue
			}
			if field = rule.Field; !ruleset.Undesired {
				return field
			}
		}
	}
	return field
}
