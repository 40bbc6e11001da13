// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// Tables are what the verdicts on a pair of classes are computed from.
type Tables struct {
	cell.In

	Members     statedb.Table[*tables.ClassMember] // what classes stand for
	Rules       statedb.Table[*tables.EnforcedPolicy]
	Kernel      statedb.Table[*tables.PolicyMapEntry] // of classes of which nobody knows that any more
	Enforcement tables.Enforcement
}

// Computer computes the entries of many pairs. It remembers the rules about each
// subject for as long as policy-rules stays as it is, so that a pair costs no more
// than what concerns it. It is not to be used concurrently.
type Computer struct {
	Tables

	revision statedb.Revision // of policy-rules
	views    map[viewKey]*view
}

// NewComputer returns a computer that remembers nothing yet.
func NewComputer(t Tables) *Computer { return &Computer{Tables: t} }

// Entries returns the entries wanted of a pair of classes, in order of key: none
// if one of them does not exist, or is that of pods that no policy chooses. It is
// a function of the snapshot.
func (c *Computer) Entries(txn statedb.ReadTxn, pair tables.PolicyPair) []*tables.PolicyEntry {
	subject := tables.ClassRow(txn, c.Members, bpf.ClassKey{Role: bpf.RoleSubject, Number: pair.Subject})
	if pair.Subject == bpf.NoSubjectClass || subject == nil {
		return nil
	}
	var peer *tables.ClassMember
	if pair.Peer != bpf.AnyPeerClass {
		peer = tables.ClassRow(txn, c.Members, bpf.ClassKey{Role: bpf.RolePeer, Number: pair.Peer})
	}
	switch {
	case subject.Ended():
		return c.asInKernel(txn, pair)
	case pair.Peer == bpf.AnyPeerClass:
		return c.view(txn, subject, pair.Direction).anyPeer(pair, c.Enforcement).entries()
	case peer == nil:
		return nil
	case peer.Ended():
		return c.asInKernel(txn, pair)
	}
	return c.view(txn, subject, pair.Direction).ofPeer(pair, peer).entries()
}

// asInKernel returns the kernel's entries of a pair.
func (c *Computer) asInKernel(txn statedb.ReadTxn, pair tables.PolicyPair) (entries []*tables.PolicyEntry) {
	for e := range c.Kernel.List(txn, tables.PolicyMapEntriesOfPair(pair)) {
		entries = append(entries, &tables.PolicyEntry{Key: e.Key, Value: e.Value, Reconciled: tables.Pending()})
	}
	slices.SortFunc(entries, func(a, b *tables.PolicyEntry) int { return compareKeys(a.Key, b.Key) })
	return entries
}

// view has the rules in force about a subject class in a direction.
type view struct {
	subject  *tables.ClassMember
	defaults []*tables.EnforcedRule
	any      []*tables.EnforcedRule // of any peer
	anyNamed []*tables.EnforcedRule // of these, with ports that each peer has a number for
	peers    map[tables.SelectorID][]*tables.EnforcedRule
}

type viewKey struct {
	subject   uint32
	direction bpf.Direction
}

// view returns the rules about a subject class.
func (c *Computer) view(txn statedb.ReadTxn, subject *tables.ClassMember, direction bpf.Direction) *view {
	if revision := c.Rules.Revision(txn); c.views == nil || revision != c.revision {
		c.revision, c.views = revision, map[viewKey]*view{}
	}
	key := viewKey{subject.Class, direction}
	v := c.views[key]
	if v == nil || v.subject != subject {
		v = c.newView(txn, subject, direction)
		c.views[key] = v
	}
	return v
}

func (c *Computer) newView(txn statedb.ReadTxn, subject *tables.ClassMember, direction bpf.Direction) *view {
	v := &view{subject: subject, peers: map[tables.SelectorID][]*tables.EnforcedRule{}}
	for _, id := range subject.Selectors {
		for r := range tables.EnforcedRulesBySubject(txn, c.Rules, id) {
			switch {
			case r.Direction != direction:
			case r.DefaultDeny:
				v.defaults = append(v.defaults, r)
			case r.AnyPeer:
				v.any = append(v.any, r)
				if direction == bpf.DirectionEgress && hasNamedPort(r) {
					v.anyNamed = append(v.anyNamed, r)
				}
			default:
				for _, peer := range r.Peers {
					v.peers[peer] = append(v.peers[peer], r)
				}
			}
		}
	}
	return v
}

func hasNamedPort(r *tables.EnforcedRule) bool {
	return slices.ContainsFunc(r.Ports, func(p tables.PolicyPort) bool { return p.Name != "" })
}

// anyPeer returns what is said whatever the peer is, and the default.
func (v *view) anyPeer(pair tables.PolicyPair, enforcement tables.Enforcement) contributions {
	c := contributions{}
	key := bpf.PolicyKeyOf(pair.Subject, pair.Peer, pair.Direction, 0, 0, 0)
	for _, r := range v.defaults {
		c[key] = append(c[key], contribution{precedence: bpf.PrecedenceDefault, deny: true, rule: r.RuleID})
	}
	if len(v.defaults) == 0 {
		c[key] = []contribution{{
			precedence: bpf.PrecedenceDefault, deny: enforcement == tables.EnforcementAlways, anonymous: true,
		}}
	}
	var named []tables.NamedPort
	if pair.Direction == bpf.DirectionIngress {
		named = v.subject.Ports
	}
	for _, r := range v.any {
		for key := range keysOf(pair, r.Ports, named, false) {
			c.add(key, r)
		}
	}
	return c
}

// ofPeer returns what is said of a peer class beyond what is said of any.
func (v *view) ofPeer(pair tables.PolicyPair, peer *tables.ClassMember) contributions {
	c := contributions{}
	named := peer.Ports
	if pair.Direction == bpf.DirectionIngress {
		named = v.subject.Ports
	}
	// A rule that names several selectors of the peer contributes as often, to
	// the same keys: what comes of it is the same.
	for _, id := range peer.Selectors {
		for _, r := range v.peers[id] {
			for key := range keysOf(pair, r.Ports, named, false) {
				c.add(key, r)
			}
		}
	}
	for _, r := range v.anyNamed {
		for key := range keysOf(pair, r.Ports, named, true) {
			c.add(key, r)
		}
	}
	return c
}
