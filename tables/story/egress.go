// SPDX-License-Identifier: Apache-2.0

package story

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// egress tells the story of an egress policy.
func (t *Teller) egress(txn statedb.ReadTxn, s *Story, name string) error {
	policy, _, found := t.t.EgressPolicies.Get(txn, tables.EgressPolicyByName(name))
	if !found {
		return absent(s.Policy)
	}
	add(s, t.t.EgressPolicies, "what the agent makes of the object", slices.Values([]*tables.EgressPolicy{policy}))
	add(s, t.t.EgressStatus, "how the policy fares on this node", one(txn, t.t.EgressStatus, tables.EgressPolicyStatusByPolicy(name)))

	var selectors []statedb.Query[*tables.Selector]
	for _, selector := range policy.Selectors {
		selectors = append(selectors, tables.SelectorByID(tables.NewSelectorID(bpf.RoleEgress, selector.String())))
	}
	add(s, t.t.Selectors, "its selectors", each(txn, selectors, t.t.Selectors.List))
	classes := statedb.Collect(t.t.EgressClasses.List(txn, tables.EgressClassesByPolicy(name)))
	add(s, t.t.EgressClasses, "classes of the pods that it chooses", slices.Values(classes))

	group := tables.EgressGroupByDigest(tables.GroupDigest(policy.Gateways))
	add(s, t.t.EgressGroups, "its group of gateways", one(txn, t.t.EgressGroups, group))
	var buckets []statedb.Query[*tables.EgressGateway]
	var bucketEntries []statedb.Query[*tables.GatewayEntry]
	if g, _, found := t.t.EgressGroups.Get(txn, group); found {
		buckets = append(buckets, tables.EgressGatewaysOfGroup(g.Number))
		bucketEntries = append(bucketEntries, tables.GatewayEntriesByGroup(g.Number))
	}
	addAs(s, t.t.EgressGateways.Name(), "buckets of the group, by gateway", shares(each(txn, buckets, t.t.EgressGateways.Prefix)))

	rules := statedb.Collect(t.t.EgressRules.List(txn, tables.EgressRulesByPolicy(name)))
	add(s, t.t.EgressRules, "rules that it decides, or loses to another policy", slices.Values(rules))

	add(s, t.t.GatewayEntries, "buckets of the group in the kernel", each(txn, bucketEntries, t.t.GatewayEntries.List))
	var entries []statedb.Query[*tables.EgressEntry]
	for _, rule := range rules {
		entries = append(entries, tables.MapEntryByKey[bpf.EgressKey, bpf.EgressValue](rule.MapKey()))
	}
	add(s, t.t.EgressEntries, "its rules in the kernel", each(txn, entries, t.t.EgressEntries.List))
	var sources []statedb.Query[*tables.SourceEntry]
	for _, class := range classes {
		sources = append(sources, tables.SourceEntriesByClass(class.Number))
	}
	add(s, t.t.SourceEntries, "addresses in the kernel that it chooses", each(txn, sources, t.t.SourceEntries.List))
	return nil
}

// share sums up the buckets of a group that are alike but for their number.
type share struct {
	tables.EgressGateway // Bucket is the first of them
	buckets              int
}

// TableHeader implements [statedb.TableWritable].
func (*share) TableHeader() []string {
	header := (*tables.EgressGateway)(nil).TableHeader()
	header[1] = "Buckets"
	return header
}

// TableRow implements [statedb.TableWritable].
func (s *share) TableRow() []string {
	row := s.EgressGateway.TableRow()
	row[1] = strconv.Itoa(s.buckets)
	return row
}

// shares sums up the buckets of a group.
func shares(buckets iter.Seq[*tables.EgressGateway]) iter.Seq[*share] {
	byText := map[string]*share{}
	for b := range buckets {
		like := *b
		like.Bucket = 0
		like.Status = reconciler.Status{}
		text := fmt.Sprint(like.TableRow(), b.Status.Kind, b.Status.GetError())
		if byText[text] == nil {
			byText[text] = &share{EgressGateway: *b}
		}
		byText[text].buckets++
	}
	return slices.Values(slices.SortedFunc(maps.Values(byText), func(a, b *share) int { return cmp.Compare(a.Bucket, b.Bucket) }))
}
