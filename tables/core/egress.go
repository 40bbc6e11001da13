// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// EgressRuleset is where the traffic goes of subjects that the same egress policies select,
// with the same content.
type EgressRuleset struct {
	Life   `yaml:",inline"`
	Digest bpf.Digest `json:"digest"`

	Policies []string `json:"policies"` // in the order in which they win
}

// TableHeader implements [statedb.TableWritable].
func (*EgressRuleset) TableHeader() []string {
	return []string{"Number", "Policies", "Undesired"}
}

// TableRow implements [statedb.TableWritable].
func (r *EgressRuleset) TableRow() []string {
	return []string{
		number(r.Number), tables.ListColumn(r.Policies, ", "), trueOrDash(r.Undesired),
	}
}

var (
	egressRulesetNumber = statedb.Index[*EgressRuleset, uint32]{
		Name: "number", Unique: true, FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(r *EgressRuleset) index.KeySet { return index.NewKeySet(index.Uint32(r.Number)) },
	}
	egressRulesetDigest = statedb.Index[*EgressRuleset, bpf.Digest]{
		Name: "digest", Unique: true, FromKey: tables.DigestKey, FromString: tables.DigestFromString,
		FromObject: func(r *EgressRuleset) index.KeySet { return index.NewKeySet(tables.DigestKey(r.Digest)) },
	}
	egressRulesetPolicy = statedb.Index[*EgressRuleset, string]{
		Name: "policy", FromKey: index.String, FromString: index.FromString,
		FromObject: func(r *EgressRuleset) index.KeySet { return index.StringSlice(r.Policies) },
	}
	egressRulesetUndesired = statedb.Index[*EgressRuleset, bool]{
		Name: "undesired", FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(r *EgressRuleset) index.KeySet { return marked(r.Undesired) },
	}

	// EgressRulesetByNumber queries an egress ruleset by its number.
	EgressRulesetByNumber = egressRulesetNumber.Query

	// EgressRulesetByDigest queries the egress ruleset with a content.
	EgressRulesetByDigest = egressRulesetDigest.Query

	// EgressRulesetsByPolicy queries the egress rulesets with a policy.
	EgressRulesetsByPolicy = egressRulesetPolicy.Query

	// EgressRulesetsUndesired queries, by true, the egress rulesets that no route wants.
	EgressRulesetsUndesired = egressRulesetUndesired.Query
)

// NewEgressRulesetTable creates the table of egress rulesets.
func NewEgressRulesetTable(db *statedb.DB) (statedb.RWTable[*EgressRuleset], error) {
	return statedb.NewTable(db, "egress-rulesets", egressRulesetNumber, egressRulesetDigest,
		egressRulesetPolicy, egressRulesetUndesired)
}

// EgressRule says where the traffic of an egress ruleset to a destination prefix goes. An
// entry of sluice_egress: the longest prefix decides.
type EgressRule struct {
	Ruleset     uint32       `json:"ruleset"`
	Destination netip.Prefix `json:"destination"`

	// Group is the gateway group, [bpf.GroupExcluded] for destinations whose traffic takes
	// its ordinary way.
	Group uint32 `json:"group"`

	Policy    string   `json:"policy"`              // that decides
	Selector  string   `json:"selector"`            // by which it selects the pods
	Overrides []string `json:"overrides,omitempty"` // policies that name this very prefix too and lose

	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (r *EgressRule) Equal(o *EgressRule) bool {
	return r.Ruleset == o.Ruleset && r.Destination == o.Destination && r.Group == o.Group &&
		r.Policy == o.Policy && r.Selector == o.Selector && slices.Equal(r.Overrides, o.Overrides)
}

// MapKey is the key in sluice_egress.
func (r *EgressRule) MapKey() EgressKey { return EgressKeyOf(r.Ruleset, r.Destination) }

// MapValue is the value in sluice_egress.
func (r *EgressRule) MapValue() bpf.EgressValue { return bpf.EgressValue{Group: r.Group} }

// Clone returns a shallow copy.
func (r *EgressRule) Clone() *EgressRule { c := *r; return &c }

// SetStatus sets the reconciliation status.
func (r *EgressRule) SetStatus(s reconciler.Status) *EgressRule { r.Status = s; return r }

// GetStatus returns the reconciliation status.
func (r *EgressRule) GetStatus() reconciler.Status { return r.Status }

// TableHeader implements [statedb.TableWritable].
func (*EgressRule) TableHeader() []string {
	return []string{
		"Ruleset",
		"Destination",
		"Gateways",
		"Policy",
		"Selector",
		"Overrides",
		"Status",
		"Error",
	}
}

// TableRow implements [statedb.TableWritable].
func (r *EgressRule) TableRow() []string {
	return []string{
		number(r.Ruleset), r.Destination.String(), r.MapValue().String(), r.Policy, r.Selector,
		tables.ListColumn(r.Overrides, ", "), r.Status.Kind.String(), tables.OrDash(r.Status.GetError()),
	}
}

// EgressRuleKey is the key of an [EgressRule].
type EgressRuleKey struct {
	Ruleset     uint32
	Destination netip.Prefix
}

func (k EgressRuleKey) key() index.Key {
	return append(index.Uint32(k.Ruleset), index.NetIPPrefix(k.Destination)...)
}

var (
	egressRuleKey = statedb.Index[*EgressRule, EgressRuleKey]{
		Name: "key", Unique: true, FromKey: EgressRuleKey.key, FromString: index.Uint32String,
		FromObject: func(r *EgressRule) index.KeySet {
			return index.NewKeySet(EgressRuleKey{r.Ruleset, r.Destination}.key())
		},
	}
	egressRulePolicy = statedb.Index[*EgressRule, string]{
		Name: "policy", FromKey: index.String, FromString: index.FromString,
		FromObject: func(r *EgressRule) index.KeySet {
			return index.StringSlice(append([]string{r.Policy}, r.Overrides...))
		},
	}
	egressRuleGroup = statedb.Index[*EgressRule, uint32]{
		Name: "group", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(r *EgressRule) index.KeySet { return nonZero(r.Group) },
	}
	egressRulePending = statedb.Index[*EgressRule, uint32]{
		Name: "pending", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(r *EgressRule) index.KeySet {
			if isDone(r.Status) {
				return index.NewKeySet()
			}
			return index.NewKeySet(index.Uint32(r.Ruleset))
		},
	}

	// EgressRuleByKey queries the rule of an egress ruleset for one very prefix.
	EgressRuleByKey = egressRuleKey.Query

	// EgressRulesByPolicy queries the rules that a policy decides or loses.
	EgressRulesByPolicy = egressRulePolicy.Query

	// EgressRulesByGroup queries the rules that send traffic to a gateway group.
	EgressRulesByGroup = egressRuleGroup.Query

	// EgressRulesPending queries the rules of an egress ruleset that the kernel does not
	// have yet.
	EgressRulesPending = egressRulePending.Query
)

// EgressRulesOfRuleset queries, with Prefix, the rules of an egress ruleset.
func EgressRulesOfRuleset(ruleset uint32) statedb.Query[*EgressRule] {
	return egressRuleKey.QueryFromKey(index.Uint32(ruleset))
}

// NewEgressRuleTable creates the table of egress rules.
func NewEgressRuleTable(db *statedb.DB) (statedb.RWTable[*EgressRule], error) {
	return statedb.NewTable(
		db,
		"egress-rules",
		egressRuleKey,
		egressRulePolicy,
		egressRuleGroup,
		egressRulePending,
	)
}

// EgressGroup is a group of gateways among which the sources of policies are spread.
// Policies with the same list of gateways share it. An election changes its buckets, not
// its number.
type EgressGroup struct {
	Life   `yaml:",inline"`
	Digest bpf.Digest `json:"digest"` // of the list, see [tables.GroupDigest]

	Policies []string               `json:"policies"` // that use it
	Gateways []tables.GatewayChoice `json:"gateways"`

	// Local says that this node may be elected: it matches some item of the list.
	Local bool `json:"local"`
}

// Equal reports whether two rows say the same.
func (g *EgressGroup) Equal(o *EgressGroup) bool {
	return g.Life == o.Life && g.Digest == o.Digest && g.Local == o.Local &&
		slices.Equal(g.Policies, o.Policies) && slices.Equal(g.Gateways, o.Gateways)
}

// TableHeader implements [statedb.TableWritable].
func (*EgressGroup) TableHeader() []string {
	return []string{"Number", "Policies", "Gateways", "Local", "Undesired"}
}

// TableRow implements [statedb.TableWritable].
func (g *EgressGroup) TableRow() []string {
	gateways := make([]string, len(g.Gateways))
	for i, c := range g.Gateways {
		gateways[i] = c.String()
	}
	return []string{
		number(g.Number), tables.ListColumn(g.Policies, ", "), tables.ListColumn(gateways, " | "),
		fmt.Sprint(g.Local), trueOrDash(g.Undesired),
	}
}

var (
	egressGroupNumber = statedb.Index[*EgressGroup, uint32]{
		Name: "number", Unique: true, FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(g *EgressGroup) index.KeySet { return index.NewKeySet(index.Uint32(g.Number)) },
	}
	egressGroupDigest = statedb.Index[*EgressGroup, bpf.Digest]{
		Name: "digest", Unique: true, FromKey: tables.DigestKey, FromString: tables.DigestFromString,
		FromObject: func(g *EgressGroup) index.KeySet { return index.NewKeySet(tables.DigestKey(g.Digest)) },
	}
	egressGroupUndesired = statedb.Index[*EgressGroup, bool]{
		Name: "undesired", FromKey: index.Bool, FromString: index.BoolString,
		FromObject: func(g *EgressGroup) index.KeySet { return marked(g.Undesired) },
	}

	// EgressGroupByNumber queries a group by its number.
	EgressGroupByNumber = egressGroupNumber.Query

	// EgressGroupByDigest queries the group of a list of gateways.
	EgressGroupByDigest = egressGroupDigest.Query

	// EgressGroupsUndesired queries, by true, the groups that no egress rule wants.
	EgressGroupsUndesired = egressGroupUndesired.Query
)

// NewEgressGroupTable creates the table of gateway groups.
func NewEgressGroupTable(db *statedb.DB) (statedb.RWTable[*EgressGroup], error) {
	return statedb.NewTable(
		db,
		"egress-groups",
		egressGroupNumber,
		egressGroupDigest,
		egressGroupUndesired,
	)
}
