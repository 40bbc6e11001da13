// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// PolicyEntry is what a ruleset says of a class in a direction. An entry of sluice_policy.
// There is one for each class of which the ruleset says something special, and one for
// [AnyClass].
type PolicyEntry struct {
	Ruleset   uint32            `json:"ruleset"`
	Class     uint32            `json:"class"`
	Direction bpf.Direction     `json:"direction"`
	Set       uint32            `json:"set"`
	Status    reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (e *PolicyEntry) Equal(o *PolicyEntry) bool {
	return e.MapKey() == o.MapKey() && e.Set == o.Set
}

// MapKey is the key in sluice_policy.
func (e *PolicyEntry) MapKey() PolicyKey {
	return PolicyKey{Ruleset: e.Ruleset, Class: e.Class, Direction: e.Direction}
}

// MapValue is the value in sluice_policy.
func (e *PolicyEntry) MapValue() PolicyValue { return PolicyValue{e.Set} }

// Clone returns a shallow copy.
func (e *PolicyEntry) Clone() *PolicyEntry { c := *e; return &c }

// SetStatus sets the reconciliation status.
func (e *PolicyEntry) SetStatus(s reconciler.Status) *PolicyEntry { e.Status = s; return e }

// GetStatus returns the reconciliation status.
func (e *PolicyEntry) GetStatus() reconciler.Status { return e.Status }

// isDone reports whether the kernel has what is desired.
func isDone(s reconciler.Status) bool { return s.Kind == reconciler.StatusKindDone }

// TableHeader implements [statedb.TableWritable].
func (*PolicyEntry) TableHeader() []string {
	return []string{"Ruleset", "Class", "Direction", "Set", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (e *PolicyEntry) TableRow() []string {
	class := "any"
	if e.Class != AnyClass {
		class = number(e.Class)
	}
	return []string{
		number(e.Ruleset), class, e.Direction.String(), number(e.Set),
		e.Status.Kind.String(), tables.OrDash(e.Status.GetError()),
	}
}

func policyEntryKeyOf(k PolicyKey) index.Key {
	b := append(index.Uint32(k.Ruleset), index.Uint32(k.Class)...)
	return append(b, byte(k.Direction))
}

var (
	policyEntryKey = statedb.Index[*PolicyEntry, PolicyKey]{
		Name: "key", Unique: true, FromKey: policyEntryKeyOf, FromString: index.Uint32String,
		FromObject: func(e *PolicyEntry) index.KeySet { return index.NewKeySet(policyEntryKeyOf(e.MapKey())) },
	}
	policyEntryClass = statedb.Index[*PolicyEntry, uint32]{
		Name: "class", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(e *PolicyEntry) index.KeySet { return nonZero(e.Class) },
	}
	policyEntrySet = statedb.Index[*PolicyEntry, uint32]{
		Name: "set", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(e *PolicyEntry) index.KeySet { return index.NewKeySet(index.Uint32(e.Set)) },
	}
	policyEntryPendingRuleset = statedb.Index[*PolicyEntry, uint32]{
		Name: "pending-ruleset", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(e *PolicyEntry) index.KeySet {
			if isDone(e.Status) {
				return index.NewKeySet()
			}
			return index.NewKeySet(index.Uint32(e.Ruleset))
		},
	}
	policyEntryPendingClass = statedb.Index[*PolicyEntry, uint32]{
		Name: "pending-class", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(e *PolicyEntry) index.KeySet {
			if isDone(e.Status) {
				return index.NewKeySet()
			}
			return nonZero(e.Class)
		},
	}

	// PolicyEntryByKey queries the entry under a key of the map.
	PolicyEntryByKey = policyEntryKey.Query

	// PolicyEntriesByClass queries what rulesets say specially of a class.
	PolicyEntriesByClass = policyEntryClass.Query

	// PolicyEntriesBySet queries the entries that refer to a verdict set.
	PolicyEntriesBySet = policyEntrySet.Query

	// PolicyEntriesPendingOfRuleset queries the entries of a ruleset that the kernel does
	// not have yet.
	PolicyEntriesPendingOfRuleset = policyEntryPendingRuleset.Query

	// PolicyEntriesPendingOfClass queries the entries about a class that the kernel does not
	// have yet.
	PolicyEntriesPendingOfClass = policyEntryPendingClass.Query
)

// PolicyEntriesOfRuleset queries, with Prefix, all entries of a ruleset.
func PolicyEntriesOfRuleset(ruleset uint32) statedb.Query[*PolicyEntry] {
	return policyEntryKey.QueryFromKey(index.Uint32(ruleset))
}

// NewPolicyEntryTable creates the table of policy entries.
func NewPolicyEntryTable(db *statedb.DB) (statedb.RWTable[*PolicyEntry], error) {
	return statedb.NewTable(db, "policy-entries", policyEntryKey, policyEntryClass, policyEntrySet,
		policyEntryPendingRuleset, policyEntryPendingClass)
}

// Compiled says that policy-entries has all that is wanted of a ruleset with the classes
// that there were, or of a class with the rulesets that there were, when it was computed.
type Compiled struct {
	Role   CompiledRole `json:"role"`
	Number uint32       `json:"number"`
}

// CompiledRole says what a [Compiled] is about.
type CompiledRole uint8

// The roles.
const (
	CompiledRuleset CompiledRole = iota + 1
	CompiledClass
)

func (r CompiledRole) String() string {
	if r == CompiledRuleset {
		return "ruleset"
	}
	return "class"
}

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (r CompiledRole) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// TableHeader implements [statedb.TableWritable].
func (*Compiled) TableHeader() []string { return []string{"Role", "Number"} }

// TableRow implements [statedb.TableWritable].
func (c *Compiled) TableRow() []string { return []string{c.Role.String(), number(c.Number)} }

func compiledKeyOf(c Compiled) index.Key {
	return append(index.Key{byte(c.Role)}, index.Uint32(c.Number)...)
}

var (
	compiledKey = statedb.Index[*Compiled, Compiled]{
		Name: "key", Unique: true, FromKey: compiledKeyOf, FromString: index.FromString,
		FromObject: func(c *Compiled) index.KeySet { return index.NewKeySet(compiledKeyOf(*c)) },
	}

	// CompiledByKey queries whether a ruleset or class is compiled.
	CompiledByKey = compiledKey.Query
)

// NewCompiledTable creates the table of rulesets and classes that are compiled.
func NewCompiledTable(db *statedb.DB) (statedb.RWTable[*Compiled], error) {
	return statedb.NewTable(db, "compiled", compiledKey)
}

// VerdictSet is everything that a ruleset says of a class in a direction, complete with
// what it says of any peer. Equal ones are one.
//
// It exists while a desired policy entry refers to it. An entry that only the kernel still
// has does not keep it alive: entries never change, and one is only deleted when its ruleset
// or its class is, to which nothing in the kernel refers then.
type VerdictSet struct {
	// Number names the set in the kernel. It is not 0, and never that of another set.
	Number  uint32     `json:"number"`
	Digest  bpf.Digest `json:"digest"`
	Entries int        `json:"entries"` // of sluice_verdicts
}

// TableHeader implements [statedb.TableWritable].
func (*VerdictSet) TableHeader() []string { return []string{"Number", "Entries"} }

// TableRow implements [statedb.TableWritable].
func (s *VerdictSet) TableRow() []string {
	return []string{number(s.Number), fmt.Sprint(s.Entries)}
}

var (
	verdictSetNumber = statedb.Index[*VerdictSet, uint32]{
		Name: "number", Unique: true, FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(s *VerdictSet) index.KeySet { return index.NewKeySet(index.Uint32(s.Number)) },
	}
	verdictSetDigest = statedb.Index[*VerdictSet, bpf.Digest]{
		Name: "digest", Unique: true, FromKey: tables.DigestKey, FromString: tables.DigestFromString,
		FromObject: func(s *VerdictSet) index.KeySet { return index.NewKeySet(tables.DigestKey(s.Digest)) },
	}

	// VerdictSetByNumber queries a verdict set by its number.
	VerdictSetByNumber = verdictSetNumber.Query

	// VerdictSetByDigest queries the verdict set with a content.
	VerdictSetByDigest = verdictSetDigest.Query
)

// NewVerdictSetTable creates the table of verdict sets.
func NewVerdictSetTable(db *statedb.DB) (statedb.RWTable[*VerdictSet], error) {
	return statedb.NewTable(db, "verdict-sets", verdictSetNumber, verdictSetDigest)
}

// Verdict is what a set says of some traffic. An entry of sluice_verdicts: the longest
// prefix decides.
type Verdict struct {
	Key   VerdictKey   `json:"key"`
	Value VerdictValue `json:"value"`

	// Rules are those that decide, in order; none for a default that allows.
	Rules []tables.RuleID `json:"rules,omitempty"`

	Status reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same, whatever their status.
func (v *Verdict) Equal(o *Verdict) bool { return v.Key == o.Key && v.Value == o.Value }

// MapKey is the key in sluice_verdicts.
func (v *Verdict) MapKey() VerdictKey { return v.Key }

// MapValue is the value in sluice_verdicts.
func (v *Verdict) MapValue() VerdictValue { return v.Value }

// Clone returns a shallow copy.
func (v *Verdict) Clone() *Verdict { c := *v; return &c }

// SetStatus sets the reconciliation status.
func (v *Verdict) SetStatus(s reconciler.Status) *Verdict { v.Status = s; return v }

// GetStatus returns the reconciliation status.
func (v *Verdict) GetStatus() reconciler.Status { return v.Status }

// TableHeader implements [statedb.TableWritable].
func (*Verdict) TableHeader() []string {
	return []string{"Set", "Traffic", "Verdict", "Rules", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (v *Verdict) TableRow() []string {
	rules := make([]string, len(v.Rules))
	for i, id := range v.Rules {
		rules[i] = id.String()
	}
	return []string{
		number(
			v.Key.Set,
		), v.Traffic(), strings.TrimSuffix(v.Value.String(), fmt.Sprintf(" cookie=%d", v.Value.Cookie)),
		tables.ListColumn(rules, ", "), v.Status.Kind.String(), tables.OrDash(v.Status.GetError()),
	}
}

// Traffic describes the protocol and ports, as in 80/tcp.
func (v *Verdict) Traffic() string {
	protocol, port, bits := v.Key.Traffic()
	if protocol == 0 {
		return "any"
	}
	last := port | uint16(1<<(16-bits)-1)
	return tables.PolicyPort{Protocol: protocol, First: port, Last: last}.String()
}

func verdictKeyOf(k VerdictKey) index.Key {
	b := append(index.Uint32(k.Set), byte(k.PrefixLen), k.Protocol)
	return append(b, k.Port[:]...)
}

var (
	verdictKey = statedb.Index[*Verdict, VerdictKey]{
		Name: "key", Unique: true, FromKey: verdictKeyOf, FromString: index.Uint32String,
		FromObject: func(v *Verdict) index.KeySet { return index.NewKeySet(verdictKeyOf(v.Key)) },
	}
	verdictPending = statedb.Index[*Verdict, uint32]{
		Name: "pending", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(v *Verdict) index.KeySet {
			if isDone(v.Status) {
				return index.NewKeySet()
			}
			return index.NewKeySet(index.Uint32(v.Key.Set))
		},
	}
	verdictPolicy = statedb.Index[*Verdict, tables.PolicyID]{
		Name: "policy", FromKey: tables.PolicyID.Key, FromString: tables.PolicyKeyFromString,
		FromObject: func(v *Verdict) index.KeySet {
			var keys []index.Key
			for i, id := range v.Rules { // which are in order of policy
				if i == 0 || id.Policy != v.Rules[i-1].Policy {
					keys = append(keys, id.Policy.Key())
				}
			}
			return index.NewKeySet(keys...)
		},
	}
	verdictCookie = statedb.Index[*Verdict, uint32]{
		Name: "cookie", FromKey: index.Uint32, FromString: index.Uint32String,
		FromObject: func(v *Verdict) index.KeySet { return nonZero(v.Value.Cookie) },
	}

	// VerdictByKey queries the verdict under a key of the map.
	VerdictByKey = verdictKey.Query

	// VerdictsPending queries the verdicts of a set that the kernel does not have yet.
	VerdictsPending = verdictPending.Query

	// VerdictsByPolicy queries the verdicts that a policy decides, alone or with others.
	VerdictsByPolicy = verdictPolicy.Query

	// VerdictsByCookie queries the verdicts with a cookie.
	VerdictsByCookie = verdictCookie.Query
)

// VerdictsOfSet queries, with Prefix, the verdicts of a set.
func VerdictsOfSet(set uint32) statedb.Query[*Verdict] {
	return verdictKey.QueryFromKey(index.Uint32(set))
}

// NewVerdictTable creates the table of verdicts.
func NewVerdictTable(db *statedb.DB) (statedb.RWTable[*Verdict], error) {
	return statedb.NewTable(db, "verdicts", verdictKey, verdictPending, verdictPolicy, verdictCookie)
}
