// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
)

// memberKey is what members are computed by under a role: a label set, a node
// or a prefix. There are also keys of the rows that say that a selector is
// evaluated and what a class stands for, and of an address that may be in a class
// that it does not belong to.
type memberKey struct {
	role     bpf.Role
	set      tables.LabelSetID
	node     string
	prefix   netip.Prefix
	selector tables.SelectorID
	class    uint32
	look     netip.Prefix
}

// keyOfMember returns the key by which a member is computed.
func keyOfMember(m *tables.ClassMember) memberKey {
	switch {
	case m.Evaluated != 0:
		return memberKey{role: m.Role, selector: m.Evaluated}
	case m.OfClass:
		return memberKey{role: m.Role, class: m.Class}
	case m.LabelSet != (tables.LabelSetID{}):
		return memberKey{role: m.Role, set: m.LabelSet}
	case m.Node != "":
		return memberKey{role: m.Role, node: m.Node}
	}
	return memberKey{role: m.Role, prefix: m.Prefix}
}

// keyOfEvaluated returns the key of the row that says that a selector is evaluated.
func keyOfEvaluated(s *tables.Selector) memberKey { return memberKey{role: s.Role, selector: s.ID} }

// keyOfPrefix returns the key of what is neither a pod nor a node in a prefix.
func keyOfPrefix(p *tables.PeerPrefix) memberKey {
	return memberKey{role: bpf.RolePeer, prefix: p.Prefix}
}

type memberParams struct {
	cell.In

	Namespaces  statedb.Table[*tables.Namespace]
	Selectors   statedb.Table[*tables.Selector]
	LabelSets   statedb.Table[*tables.LabelSet]
	Output      statedb.RWTable[*tables.ClassMember]
	Classes     statedb.Table[*tables.Class]
	Rules       statedb.Table[*tables.EnforcedPolicy]
	IPCache     statedb.Table[*tables.IPCache]
	Locals      statedb.Table[*tables.LocalEndpoint]
	Enforcement tables.Enforcement
	Places      tables.PeerPlaces

	ClassEntries   statedb.Table[*tables.ClassEntry]
	SourceEntries  statedb.Table[*tables.SourceEntry]
	EgressEntries  statedb.Table[*tables.EgressEntry]
	IPCacheEntries statedb.Table[*tables.IPCacheEntry]
	PodEntries     statedb.Table[*tables.PodEntry]
	PolicyEntries  statedb.Table[*tables.PolicyMapEntry]
}

// deriveClassMembers keeps the three partitions: of label sets into egress
// classes, of label sets, nodes and prefixes into peer classes, and of the label
// sets of this node into subject classes.
func deriveClassMembers(p derive.Params, params memberParams) error {
	m := newMembers(params)
	_, err := derive.Register(p, derive.Rule[memberKey, *tables.ClassMember]{
		Output: params.Output,
		Inputs: m.inputs(),
		// Numbers are continued from what the maps hold.
		After:    []statedb.TableMeta{params.SourceEntries, params.EgressEntries, params.PolicyEntries},
		Seed:     []memberKey{{role: bpf.RolePeer, node: params.Places.LocalNode.Name}},
		Existing: m.existing,
		Plan:     m.plan,
		Equal:    (*tables.ClassMember).Equal,
	})
	return err
}

// members is the rule of the three partitions.
type members struct {
	memberParams
	partitions map[bpf.Role]*partition
	peers      *policyScope
	subjects   *policyScope
}

// roles are those that have a partition.
var roles = []bpf.Role{bpf.RoleEgress, bpf.RolePeer, bpf.RoleSubject}

func newMembers(params memberParams) *members {
	m := &members{memberParams: params, partitions: map[bpf.Role]*partition{}}
	m.peers = &policyScope{members: m, role: bpf.RolePeer, place: &peerPlace{m}, inside: map[uint32]int{}}
	m.subjects = &policyScope{members: m, role: bpf.RoleSubject, place: &subjectPlace{m}, inside: map[uint32]int{}}
	for role, s := range map[bpf.Role]scope{bpf.RoleEgress: &egressScope{m}, bpf.RolePeer: m.peers, bpf.RoleSubject: m.subjects} {
		m.partitions[role] = &partition{members: m, role: role, scope: s}
	}
	return m
}

func (m *members) existing(txn statedb.ReadTxn, key memberKey) iter.Seq2[*tables.ClassMember, statedb.Revision] {
	switch {
	case key.selector != 0:
		return m.Output.List(txn, tables.ClassMemberByKey(tables.MemberKey{Role: key.role, Evaluated: key.selector}))
	case key.class != 0:
		return m.Output.List(txn, tables.ClassMemberByKey(tables.MemberKey{Role: key.role, OfClass: key.class}))
	case key.set != tables.LabelSetID{}:
		return m.Output.Prefix(txn, tables.ClassMembersOfLabelSet(key.role, key.set))
	case key.node != "":
		return m.Output.Prefix(txn, tables.ClassMembersOfNode(key.role, key.node))
	}
	return m.Output.List(txn, tables.ClassMemberByKey(tables.MemberKey{Role: key.role, Prefix: key.prefix}))
}

// plan has each partition plan its part of a round.
func (m *members) plan(txn statedb.ReadTxn, keys []memberKey) ([]memberKey, func(memberKey) []*tables.ClassMember) {
	count := map[bpf.Role]int{} // keys are large, and may be many
	for _, key := range keys {
		count[key.role]++
	}
	byRole := map[bpf.Role][]memberKey{}
	for _, key := range keys {
		if byRole[key.role] == nil {
			byRole[key.role] = make([]memberKey, 0, count[key.role])
		}
		byRole[key.role] = append(byRole[key.role], key)
	}
	planned := make([]memberKey, 0, len(keys))
	rounds := map[bpf.Role]*round{}
	for _, role := range roles {
		if len(byRole[role]) > 0 {
			rounds[role] = m.partitions[role].plan(txn, byRole[role])
			planned = append(planned, rounds[role].planned...)
		}
	}
	return planned, func(key memberKey) []*tables.ClassMember { return rounds[key.role].rows(key) }
}

func (m *members) namespace(txn statedb.ReadTxn, name string) *tables.Namespace {
	n, _, _ := m.Namespaces.Get(txn, tables.NamespaceByName(name))
	return n
}
