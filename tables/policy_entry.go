// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/sluice-net/sluice/bpf"
)

// PolicyEntry is a verdict on some traffic between pods of a subject class and
// peers of a peer class. An entry of sluice_policy.
type PolicyEntry struct {
	Key   bpf.PolicyKey   `json:"key"`
	Value bpf.PolicyValue `json:"value"`

	// Rules are those that decide, in order; none for a default that allows.
	Rules []RuleID `json:"rules,omitempty"`

	Reconciled `yaml:",inline"`
}

// PolicyPair is what entries are computed by: the traffic in a direction between
// a subject class and a peer class, or whatever peer ([bpf.AnyPeerClass]).
type PolicyPair struct {
	Subject   uint32
	Direction bpf.Direction
	Peer      uint32
}

func (p PolicyPair) key() index.Key { return policyPairKey(p.Subject, p.Direction, p.Peer) }

func policyPairKey(subject uint32, direction bpf.Direction, peer uint32) index.Key {
	b := append(index.Uint32(subject), byte(direction))
	return append(b, index.Uint32(peer)...)
}

// PairOf returns the pair that a key is of.
func PairOf(k bpf.PolicyKey) PolicyPair { return PolicyPair{k.Subject, k.Direction, k.Peer} }

// Pair returns what the entry is computed by.
func (e *PolicyEntry) Pair() PolicyPair { return PairOf(e.Key) }

// Equal reports whether two rows want the same, whatever their status.
func (e *PolicyEntry) Equal(o *PolicyEntry) bool {
	return e.Key == o.Key && e.Value == o.Value && slices.Equal(e.Rules, o.Rules)
}

// MapKey is the key in sluice_policy.
func (e *PolicyEntry) MapKey() bpf.PolicyKey { return e.Key }

// MapValue is the value in sluice_policy.
func (e *PolicyEntry) MapValue() bpf.PolicyValue { return e.Value }

// TableHeader implements [statedb.TableWritable].
func (*PolicyEntry) TableHeader() []string {
	return []string{"Subject", "Peer", "Direction", "Traffic", "Verdict", "Precedence", "Rules", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (e *PolicyEntry) TableRow() []string {
	verdict := "allow"
	if e.Value.Deny != 0 {
		verdict = "deny"
	}
	peer := "any"
	if e.Key.Peer != bpf.AnyPeerClass {
		peer = strconv.FormatUint(uint64(e.Key.Peer), 10)
	}
	rules := make([]string, len(e.Rules))
	for i, id := range e.Rules {
		rules[i] = id.String()
	}
	return []string{
		strconv.FormatUint(uint64(e.Key.Subject), 10), peer, e.Key.Direction.String(), TrafficOf(e.Key), verdict,
		strconv.FormatUint(uint64(e.Value.Precedence), 10), listColumn(rules, ", "), e.Status.Kind.String(), orDash(e.Status.GetError()),
	}
}

// TrafficOf describes the protocol and ports of a key, as in 80/tcp.
func TrafficOf(k bpf.PolicyKey) string {
	if k.AnyProtocol() {
		return "any"
	}
	first, last := k.Ports()
	return PolicyPort{Protocol: k.Protocol, First: first, Last: last}.String()
}

// String is "policy direction[rule.item]", such as
// "NetworkPolicy/shop/web ingress[0.1]"; of a default "... ingress[0]".
func (id RuleID) String() string {
	var b strings.Builder
	b.WriteString(id.Policy.String() + " " + id.Direction.String() + "[" + strconv.Itoa(int(id.Rule)))
	if id.Item >= 0 {
		b.WriteString("." + strconv.Itoa(int(id.Item)))
	}
	b.WriteString("]")
	return b.String()
}

var (
	policyEntryKeyIndex = UniqueIndex("key", KeysOf(policyEntryKey, policySubjectFromString),
		func(e *PolicyEntry) bpf.PolicyKey { return e.Key })

	policyEntryPeerIndex = Index("peer", Uint32Keys,
		func(e *PolicyEntry) uint32 { return e.Key.Peer })

	policyEntryPolicyIndex = newIndex("policy", PolicyKeys, func(e *PolicyEntry) index.KeySet {
		var keys []index.Key
		for i, id := range e.Rules { // which are in order of policy
			if i == 0 || id.Policy != e.Rules[i-1].Policy {
				keys = append(keys, id.Policy.Key())
			}
		}
		return index.NewKeySet(keys...)
	})

	// PolicyEntriesByPolicy queries the entries that a policy decides, alone or
	// with others.
	PolicyEntriesByPolicy = policyEntryPolicyIndex.Query

	// PolicyEntryByKey queries the entry under a key of the map.
	PolicyEntryByKey = policyEntryKeyIndex.Query

	// PolicyEntriesByPeer queries the entries about a peer class.
	PolicyEntriesByPeer = policyEntryPeerIndex.Query
)

// PolicyEntriesOfPair queries, with Prefix, the entries of a pair of classes.
func PolicyEntriesOfPair(p PolicyPair) statedb.Query[*PolicyEntry] {
	return policyEntryKeyIndex.QueryFromKey(p.key())
}

// PolicyEntriesOfSubject queries, with Prefix, the entries of a subject class.
func PolicyEntriesOfSubject(class uint32) statedb.Query[*PolicyEntry] {
	return policyEntryKeyIndex.QueryFromKey(index.Uint32(class))
}

// policyEntryKey orders entries by subject, direction and peer.
func policyEntryKey(k bpf.PolicyKey) index.Key {
	b := policyPairKey(k.Subject, k.Direction, k.Peer)
	b = append(b, byte(k.PrefixLen), k.Protocol)
	return append(b, k.Port[:]...)
}

// policySubjectFromString has scripts and requests look up by subject class.
func policySubjectFromString(s string) (index.Key, error) { return index.Uint32String(s) }

// NewPolicyEntryTable creates the table of verdicts.
var NewPolicyEntryTable = Declare(
	"policy-entries", policyEntryKeyIndex, policyEntryPeerIndex, policyEntryPolicyIndex,
)
