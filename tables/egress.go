// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// EgressRuleset has the destinations and gateways of subjects that the same egress policies select,
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
		number(r.Number), listColumn(r.Policies, ", "), trueOrDash(r.Undesired),
	}
}

var (
	egressRulesetNumber = UniqueIndex("number", Uint32Keys,
		func(r *EgressRuleset) uint32 { return r.Number })
	egressRulesetDigest = UniqueIndex("digest", DigestKeys,
		func(r *EgressRuleset) bpf.Digest { return r.Digest })
	egressRulesetPolicy = IndexEach("policy", StringKeys,
		func(r *EgressRuleset) []string { return r.Policies })
	egressRulesetUndesired = FlagIndex("undesired", func(r *EgressRuleset) bool {
		return r.Undesired
	})

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
var NewEgressRulesetTable = Declare("egress-rulesets", egressRulesetNumber, egressRulesetDigest,
	egressRulesetPolicy, egressRulesetUndesired)

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

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (r *EgressRule) Equal(o *EgressRule) bool {
	return r.Ruleset == o.Ruleset && r.Destination == o.Destination && r.Group == o.Group &&
		r.Policy == o.Policy && r.Selector == o.Selector && slices.Equal(r.Overrides, o.Overrides)
}

// MapKey is the key in sluice_egress.
func (r *EgressRule) MapKey() bpf.EgressKey { return bpf.EgressKeyFrom(r.Ruleset, r.Destination) }

// MapValue is the value in sluice_egress.
func (r *EgressRule) MapValue() bpf.EgressValue {
	return bpf.EgressValue{
		Group: r.Group, Bits: uint8(r.Destination.Bits()), Policy: bpf.PolicyCookie(r.Policy),
	}
}

// TableHeader implements [statedb.TableWritable].
func (*EgressRule) TableHeader() []string {
	return []string{
		"Ruleset", "Destination", "Gateways", "Policy", "Selector", "Overrides", "Status", "Error",
	}
}

// TableRow implements [statedb.TableWritable].
func (r *EgressRule) TableRow() []string {
	return []string{
		number(r.Ruleset), r.Destination.String(), r.MapValue().String(), r.Policy, r.Selector,
		listColumn(r.Overrides, ", "), r.Status.Kind.String(), orDash(r.Status.GetError()),
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
	egressRuleKey = UniqueIndex("key", KeysOf(EgressRuleKey.key, index.Uint32String),
		func(r *EgressRule) EgressRuleKey { return EgressRuleKey{r.Ruleset, r.Destination} })
	egressRulePolicy = IndexEach("policy", StringKeys,
		func(r *EgressRule) []string { return append([]string{r.Policy}, r.Overrides...) })
	egressRuleGroup = IndexIf("group", Uint32Keys,
		func(r *EgressRule) (uint32, bool) { return r.Group, r.Group != 0 })
	egressRulePending = IndexIf("pending", Uint32Keys,
		func(r *EgressRule) (uint32, bool) { return r.Ruleset, !isDone(r.Status) })

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
var NewEgressRuleTable = Declare("egress-rules",
	egressRuleKey,
	egressRulePolicy,
	egressRuleGroup,
	egressRulePending,
)

// EgressGroup is a group of gateways among which the sources of policies are spread.
// Policies with the same list of gateways share it. An election changes its buckets, not
// its number.
type EgressGroup struct {
	Life   `yaml:",inline"`
	Digest bpf.Digest `json:"digest"` // of the list, see [GroupDigest]

	Policies []string        `json:"policies"` // that use it
	Gateways []GatewayChoice `json:"gateways"`

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
		number(g.Number), listColumn(g.Policies, ", "), listColumn(gateways, " | "),
		fmt.Sprint(g.Local), trueOrDash(g.Undesired),
	}
}

var (
	egressGroupNumber = UniqueIndex("number", Uint32Keys,
		func(g *EgressGroup) uint32 { return g.Number })
	egressGroupDigest = UniqueIndex("digest", DigestKeys,
		func(g *EgressGroup) bpf.Digest { return g.Digest })
	egressGroupUndesired = FlagIndex("undesired", func(g *EgressGroup) bool { return g.Undesired })

	// EgressGroupByNumber queries a group by its number.
	EgressGroupByNumber = egressGroupNumber.Query

	// EgressGroupByDigest queries the group of a list of gateways.
	EgressGroupByDigest = egressGroupDigest.Query

	// EgressGroupsUndesired queries, by true, the groups that no egress rule wants.
	EgressGroupsUndesired = egressGroupUndesired.Query
)

// NewEgressGroupTable creates the table of gateway groups.
var NewEgressGroupTable = Declare("egress-groups",
	egressGroupNumber,
	egressGroupDigest,
	egressGroupUndesired,
)
