// SPDX-License-Identifier: Apache-2.0

package trace

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

// egress builds the trace of an egress policy.
func (t *Builder) egress(txn statedb.ReadTxn, s *Trace, name string) error {
	policy, _, found := t.t.EgressPolicies.Get(txn, tables.EgressPolicyByName(name))
	if !found {
		return absent(s.Policy)
	}
	add(s, t.t.EgressPolicies, "what the agent makes of the object",
		slices.Values([]*tables.EgressPolicy{policy}))
	if status, _, found := t.t.EgressStatus.Get(
		txn, tables.EgressPolicyStatusByPolicy(name),
	); found {
		s.Drops = status.Drops
	}
	add(s, t.t.EgressStatus, "the status of the policy on this node",
		one(txn, t.t.EgressStatus, tables.EgressPolicyStatusByPolicy(name)))

	rulesets := statedb.Collect(t.t.EgressRulesets.List(txn, tables.EgressRulesetsByPolicy(name)))
	add(s, t.t.EgressRulesets, "rulesets of the pods that it selects", slices.Values(rulesets))
	rules := statedb.Collect(t.t.EgressRules.List(txn, tables.EgressRulesByPolicy(name)))
	add(s, t.t.EgressRules, "rules that it decides, or loses to another policy",
		slices.Values(rules))
	add(s, t.t.EgressMirror, "its rules in the kernel", mirrors(txn, t.t.EgressMirror, rules))

	group := tables.EgressGroupByDigest(tables.GroupDigest(policy.Gateways))
	add(s, t.t.EgressGroups, "its group of gateways", one(txn, t.t.EgressGroups, group))
	var buckets []*tables.EgressGateway
	if g, _, found := t.t.EgressGroups.Get(txn, group); found {
		ofGroup := tables.EgressGatewaysOfGroup(g.Number)
		buckets = statedb.Collect(t.t.EgressGateways.Prefix(txn, ofGroup))
	}
	addAs(s, t.t.EgressGateways.Name(), "buckets of the group, by gateway",
		shares(slices.Values(buckets)))
	add(s, t.t.GatewayMirror, "buckets of the group in the kernel",
		mirrors(txn, t.t.GatewayMirror, buckets))

	to := numbers(rulesets)
	routes := slices.Collect(each(txn, to, tables.RoutesByRuleset, t.t.Routes.List))
	add(s, t.t.Routes, "label sets of pods with its rulesets", slices.Values(routes))
	add(s, t.t.RouteMirror, "label sets that the kernel routes by its rulesets",
		each(txn, to, tables.MirrorsTo[bpf.SubjectKey, bpf.RouteValue], t.t.RouteMirror.List))
	pods := func(r *tables.SubjectRoute) statedb.Query[*tables.Pod] {
		return tables.PodsBySubject(r.Subject)
	}
	add(s, t.t.Pods, "addresses that it is about", each(txn, routes, pods, t.t.Pods.List))
	return nil
}

// share sums up the buckets of a group that differ only by their number.
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
	byBucket := func(a, b *share) int { return cmp.Compare(a.Bucket, b.Bucket) }
	return slices.Values(slices.SortedFunc(maps.Values(byText), byBucket))
}
