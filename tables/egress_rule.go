// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// EgressRule says where the traffic of an egress class to a destination prefix
// goes. An entry of sluice_egress: the longest prefix that contains the
// destination decides.
type EgressRule struct {
	Class       uint32       `json:"class"`
	Destination netip.Prefix `json:"destination"`

	// Group is the gateway group, [bpf.GroupExcluded] for destinations whose
	// traffic goes its ordinary way.
	Group uint32 `json:"group"`

	Policy    string   `json:"policy"`              // that decides
	Selector  string   `json:"selector"`            // through which it chooses the class
	Overrides []string `json:"overrides,omitempty"` // policies that name this very prefix too and lose

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (r *EgressRule) Equal(o *EgressRule) bool {
	return r.Class == o.Class && r.Destination == o.Destination && r.Group == o.Group && r.Policy == o.Policy &&
		r.Selector == o.Selector && slices.Equal(r.Overrides, o.Overrides)
}

// MapKey is the key in sluice_egress.
func (r *EgressRule) MapKey() bpf.EgressKey { return bpf.EgressKeyFrom(r.Class, r.Destination) }

// MapValue is the value in sluice_egress.
func (r *EgressRule) MapValue() bpf.EgressValue { return bpf.EgressValue{Group: r.Group} }

// TableHeader implements [statedb.TableWritable].
func (*EgressRule) TableHeader() []string {
	return []string{"Class", "Destination", "Gateways", "Policy", "Selector", "Overrides", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (r *EgressRule) TableRow() []string {
	return []string{
		strconv.FormatUint(uint64(r.Class), 10), r.Destination.String(), r.MapValue().String(), r.Policy, r.Selector,
		listColumn(r.Overrides, ", "), r.Status.Kind.String(), orDash(r.Status.GetError()),
	}
}

var (
	// With db/prefix: the rules of a class.
	egressRuleKeyIndex = UniqueIndex("key", KeysOf(egressRuleID.key, index.Uint32String),
		func(r *EgressRule) egressRuleID { return egressRuleID{r.Class, r.Destination} })

	egressRulePolicyIndex = IndexEach("policy", StringKeys,
		func(r *EgressRule) []string { return append([]string{r.Policy}, r.Overrides...) })

	// EgressRulesByPolicy queries the rules that a policy decides or loses.
	EgressRulesByPolicy = egressRulePolicyIndex.Query
)

// egressRuleID is the primary key.
type egressRuleID struct {
	class       uint32
	destination netip.Prefix
}

func (id egressRuleID) key() index.Key {
	return append(index.Uint32(id.class), index.NetIPPrefix(id.destination)...)
}

// EgressRuleByKey queries the rule of a class for one very prefix.
func EgressRuleByKey(class uint32, destination netip.Prefix) statedb.Query[*EgressRule] {
	return egressRuleKeyIndex.Query(egressRuleID{class, destination})
}

// EgressRulesOfClass queries, with Prefix, the rules of a class.
func EgressRulesOfClass(class uint32) statedb.Query[*EgressRule] {
	return egressRuleKeyIndex.QueryFromKey(index.Uint32(class))
}

// NewEgressRuleTable creates the table of egress rules.
var NewEgressRuleTable = Declare("egress-rules", egressRuleKeyIndex, egressRulePolicyIndex)
