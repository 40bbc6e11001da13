// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"cmp"
	"strings"

	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// RuleID identifies one item of a policy in one direction.
type RuleID struct {
	Policy    PolicyID      `json:"policy"`
	Rule      int32         `json:"rule"` // index of the policy's spec
	Direction bpf.Direction `json:"direction"`
	Item      int32         `json:"item"` // index of the traffic, -1 of the default

	// Field is where the object has it, such as spec.ingress[1].
	Field string `json:"field"`
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
		strings.Compare(id.Field, o.Field),
	)
}

// String is as in "NetworkPolicy/shop/web spec.ingress[0]".
func (id RuleID) String() string { return strings.TrimSuffix(id.Policy.String()+" "+id.Field, " ") }

// RuleNames returns the names of some rules.
func RuleNames(rules []RuleID) []string {
	names := make([]string, len(rules))
	for i, id := range rules {
		names[i] = id.String()
	}
	return names
}
