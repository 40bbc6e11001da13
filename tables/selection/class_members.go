// SPDX-License-Identifier: Apache-2.0

package selection

import (
	"iter"
	"net/netip"
	"slices"

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
	role   bpf.Role // 0: a label set under all roles
	of     keyKind
	set    tables.LabelSetID
	number uint64 // of a selector or class
	node   string
	prefix netip.Prefix // of an address to look at too
}

// isOf reports whether something is to be computed under a role.
func (k memberKey) isOf(role bpf.Role) bool { return k.role == role || k.role == 0 }

type keyKind uint8

const (
	ofMember   keyKind = iota
	ofSelector         // its row
	ofClass            // its row, and who may be leaving the class
	ofAddress          // to be looked at
)

// addressKey is the key of an address to be looked at.
func addressKey(role bpf.Role, prefix netip.Prefix) memberKey {
	return memberKey{role: role, of: ofAddress, prefix: prefix}
}

// classKey is the key of the row of a class that an address may be leaving.
func classKey(role bpf.Role, class uint32, prefix netip.Prefix) memberKey {
	return memberKey{role: role, of: ofClass, number: uint64(class), prefix: prefix}
}

// keyOfMember returns the key by which a member is computed.
func keyOfMember(m *tables.ClassMember) memberKey {
	switch {
	case m.Evaluated != 0:
		return memberKey{role: m.Role, of: ofSelector, number: uint64(m.Evaluated)}
	case m.OfClass:
		return classKey(m.Role, m.Class, netip.Prefix{})
	case m.LabelSet != (tables.LabelSetID{}):
		return memberKey{role: m.Role, set: m.LabelSet}
	case m.Node != "":
		return memberKey{role: m.Role, node: m.Node}
	}
	return memberKey{role: m.Role, prefix: m.Prefix}
}

// keyOfEvaluated returns the key of the row that says that a selector is evaluated.
func keyOfEvaluated(s *tables.Selector) memberKey {
	return memberKey{role: s.Role, of: ofSelector, number: uint64(s.ID)}
}

// keyOfPrefix returns the key of what is neither a pod nor a node in a prefix.
func keyOfPrefix(p *tables.PeerPrefix) memberKey {
	return memberKey{role: bpf.RolePeer, prefix: p.Prefix}
}

type memberParams struct {
	cell.In

	Namespaces  statedb.Table[*tables.Namespace]
	Selectors   statedb.Table[*tables.Selector]
	Output      statedb.RWTable[*tables.ClassMember]
	Classes     statedb.Table[*tables.Class]
	Rules       statedb.Table[*tables.EnforcedPolicy]
	Readiness   statedb.Table[*tables.PolicyReadiness]
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
		// Whoever is in no class when its last member goes does not come into it
		// by a round that has yet to see that: so the number may be used again. And
		// nothing comes into force while it is not known who has to leave for it.
		Exclusive: []statedb.TableMeta{params.IPCache, params.Locals, params.Rules},
		After:     []statedb.TableMeta{params.SourceEntries, params.EgressEntries, params.PolicyEntries},
		Seed:      []memberKey{{role: bpf.RolePeer, node: params.Places.LocalNode.Name}},
		Existing:  m.existing,
		Plan:      m.plan,
		Equal:     (*tables.ClassMember).Equal,
	})
	return err
}

// members is the rule of the three partitions.
type members struct {
	memberParams
	labels     *labelIndex
	partitions map[bpf.Role]*partition
	peers      *policyScope
	subjects   *policyScope
}

// roles are those that have a partition.
var roles = []bpf.Role{bpf.RoleEgress, bpf.RolePeer, bpf.RoleSubject}

func newMembers(params memberParams) *members {
	m := &members{memberParams: params, labels: newLabelIndex(), partitions: map[bpf.Role]*partition{}}
	m.peers = &policyScope{members: m, role: bpf.RolePeer, place: &peerPlace{m}, inside: map[uint32]int{}, stale: map[netip.Prefix]struct{}{}, leaving: leaving{}}
	m.subjects = &policyScope{members: m, role: bpf.RoleSubject, place: &subjectPlace{m}, inside: map[uint32]int{}, stale: map[netip.Prefix]struct{}{}, leaving: leaving{}}
	for role, s := range map[bpf.Role]scope{bpf.RoleEgress: &egressScope{m}, bpf.RolePeer: m.peers, bpf.RoleSubject: m.subjects} {
		m.partitions[role] = &partition{members: m, role: role, scope: s, roster: newRoster(m.Output), chooser: &chooser{members: m, role: role}, double: map[bpf.Digest]struct{}{}}
	}
	return m
}

func (m *members) existing(txn statedb.ReadTxn, key memberKey) iter.Seq2[*tables.ClassMember, statedb.Revision] {
	switch {
	case key.of == ofSelector:
		return m.Output.List(txn, tables.ClassMemberByKey(tables.MemberKey{Role: key.role, Evaluated: tables.SelectorID(key.number)}))
	case key.of == ofClass:
		return m.Output.List(txn, tables.ClassMemberByKey(tables.MemberKey{Role: key.role, OfClass: uint32(key.number)}))
	case key.set != tables.LabelSetID{}:
		return m.Output.Prefix(txn, tables.ClassMembersOfLabelSet(key.role, key.set))
	case key.node != "":
		return m.Output.Prefix(txn, tables.ClassMembersOfNode(key.role, key.node))
	}
	return m.Output.List(txn, tables.ClassMemberByKey(tables.MemberKey{Role: key.role, Prefix: key.prefix}))
}

// plan has each partition plan its part of a round.
func (m *members) plan(txn statedb.ReadTxn, keys []memberKey) ([]memberKey, func(memberKey) []*tables.ClassMember) {
	m.labels.begin()
	var planned []memberKey
	rounds := map[bpf.Role]*round{}
	for _, role := range roles {
		if !slices.ContainsFunc(keys, func(key memberKey) bool { return key.isOf(role) }) {
			continue
		}
		r := m.partitions[role].plan(txn, keys)
		rounds[role] = r
		planned = append(planned, r.planned...)
	}
	return planned, func(key memberKey) []*tables.ClassMember { return rounds[key.role].rows(key) }
}

func (m *members) namespace(txn statedb.ReadTxn, name string) *tables.Namespace {
	n, _, _ := m.Namespaces.Get(txn, tables.NamespaceByName(name))
	return n
}
