// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
)

// PolicyEntry is the verdict set of a ruleset for a class in a direction. An entry of
// sluice_policy. There is one for each class with special rules in the ruleset, and one for
// [bpf.AnyClass].
type PolicyEntry struct {
	Ruleset   uint32        `json:"ruleset"`
	Class     uint32        `json:"class"`
	Direction bpf.Direction `json:"direction"`
	Set       uint32        `json:"set"`

	// Weight is how many entries this one counts for: more than one if many selectors of the
	// ruleset select the class, as the class lists all of them.
	Weight int `json:"weight"`

	// Namespace is the one whose usage the entry counts for: see [PolicyUsage].
	Namespace string `json:"namespace,omitempty"`

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (e *PolicyEntry) Equal(o *PolicyEntry) bool {
	return e.MapKey() == o.MapKey() && e.Set == o.Set
}

// MapKey is the key in sluice_policy.
func (e *PolicyEntry) MapKey() bpf.PolicyKey {
	return bpf.PolicyKey{Ruleset: e.Ruleset, Class: e.Class, Direction: e.Direction}
}

// MapValue is the value in sluice_policy.
func (e *PolicyEntry) MapValue() bpf.PolicyValue {
	return bpf.PolicyValue{Set: e.Set}
}

// isDone reports whether the kernel has what is desired.
func isDone(s reconciler.Status) bool { return s.Kind == reconciler.StatusKindDone }

// TableHeader implements [statedb.TableWritable].
func (*PolicyEntry) TableHeader() []string {
	return []string{"Ruleset", "Class", "Direction", "Set", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (e *PolicyEntry) TableRow() []string {
	class := "any"
	if e.Class != bpf.AnyClass {
		class = number(e.Class)
	}
	return []string{
		number(e.Ruleset), class, e.Direction.String(), number(e.Set),
		e.Status.Kind.String(), orDash(e.Status.GetError()),
	}
}

func policyEntryKeyOf(k bpf.PolicyKey) index.Key {
	b := append(index.Uint32(k.Ruleset), index.Uint32(k.Class)...)
	return append(b, byte(k.Direction))
}

var (
	policyEntryKey = UniqueIndex("key", KeysOf(policyEntryKeyOf, index.Uint32String),
		func(e *PolicyEntry) bpf.PolicyKey { return e.MapKey() })
	policyEntryClass = IndexIf("class", Uint32Keys,
		func(e *PolicyEntry) (uint32, bool) { return e.Class, e.Class != 0 })
	policyEntrySet = Index("set", Uint32Keys,
		func(e *PolicyEntry) uint32 { return e.Set })
	policyEntryPendingRuleset = IndexIf("pending-ruleset", Uint32Keys,
		func(e *PolicyEntry) (uint32, bool) { return e.Ruleset, !isDone(e.Status) })
	policyEntryPendingClass = IndexIf("pending-class", Uint32Keys,
		func(e *PolicyEntry) (uint32, bool) { return e.Class, e.Class != 0 && !isDone(e.Status) })

	// PolicyEntryByKey queries the entry under a key of the map.
	PolicyEntryByKey = policyEntryKey.Query

	// PolicyEntriesByClass queries the entries with special rules for a class.
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
var NewPolicyEntryTable = Declare("policy-entries",
	policyEntryKey, policyEntryClass, policyEntrySet, policyEntryPendingRuleset,
	policyEntryPendingClass)

// Compiled says that policy-entries has all entries of a ruleset with the classes of the snapshot
// in which it was computed, or of a class with the rulesets of that.
type Compiled struct {
	Role   CompiledRole `json:"role"`
	Number uint32       `json:"number"`
}

// CompiledRole is the kind of object of a [Compiled].
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
	compiledKey = UniqueIndex("key", KeysOf(compiledKeyOf, index.FromString),
		func(c *Compiled) Compiled { return *c })

	// CompiledByKey queries whether a ruleset or class is compiled.
	CompiledByKey = compiledKey.Query
)

// NewCompiledTable creates the table of rulesets and classes that are compiled.
var NewCompiledTable = Declare("compiled", compiledKey)

// VerdictSet has all verdicts of a ruleset for a class in a direction, including those for any
// peer. Equal sets are one.
//
// It exists while a desired policy entry refers to it. An entry that only the kernel still has does
// not keep it alive: entries do not change, and an entry is only deleted together with its ruleset
// or class, when nothing in the kernel refers to that any more.
type VerdictSet struct {
	// Number names the set in the kernel. It is not 0, and never that of another set.
	Number  uint32     `json:"number"`
	Digest  bpf.Digest `json:"digest"`
	Entries int        `json:"entries"` // of sluice_verdicts

	// Namespace is the one whose usage the set counts for: the first that needed it.
	Namespace string `json:"namespace,omitempty"`
}

// TableHeader implements [statedb.TableWritable].
func (*VerdictSet) TableHeader() []string { return []string{"Number", "Entries"} }

// TableRow implements [statedb.TableWritable].
func (s *VerdictSet) TableRow() []string {
	return []string{number(s.Number), fmt.Sprint(s.Entries)}
}

var (
	verdictSetNumber = UniqueIndex("number", Uint32Keys,
		func(s *VerdictSet) uint32 { return s.Number })
	verdictSetDigest = UniqueIndex("digest", DigestKeys,
		func(s *VerdictSet) bpf.Digest { return s.Digest })

	// VerdictSetByNumber queries a verdict set by its number.
	VerdictSetByNumber = verdictSetNumber.Query

	// VerdictSetByDigest queries the verdict set with a content.
	VerdictSetByDigest = verdictSetDigest.Query
)

// NewVerdictSetTable creates the table of verdict sets.
var NewVerdictSetTable = Declare("verdict-sets", verdictSetNumber, verdictSetDigest)

// Verdict is the verdict of a set for some traffic. An entry of sluice_verdicts: the longest prefix
// decides.
type Verdict struct {
	Key   bpf.VerdictKey   `json:"key"`
	Value bpf.VerdictValue `json:"value"`

	// Rules are those that decide, in order; none for a default that allows.
	Rules []RuleID `json:"rules,omitempty"`

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (v *Verdict) Equal(o *Verdict) bool { return v.Key == o.Key && v.Value == o.Value }

// MapKey is the key in sluice_verdicts.
func (v *Verdict) MapKey() bpf.VerdictKey { return v.Key }

// MapValue is the value in sluice_verdicts.
func (v *Verdict) MapValue() bpf.VerdictValue { return v.Value }

// TableHeader implements [statedb.TableWritable].
func (*Verdict) TableHeader() []string {
	return []string{"Set", "Traffic", "Verdict", "Rules", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (v *Verdict) TableRow() []string {
	verdict := strings.TrimSuffix(v.Value.String(), fmt.Sprintf(" cookie=%d", v.Value.Cookie))
	return []string{
		number(v.Key.Set), v.Traffic(), verdict, listColumn(RuleNames(v.Rules), ", "),
		v.Status.Kind.String(), orDash(v.Status.GetError()),
	}
}

// Traffic describes the protocol and ports, as in 80/tcp.
func (v *Verdict) Traffic() string {
	protocol, port, bits := v.Key.Traffic()
	if protocol == 0 {
		return "any"
	}
	last := port | uint16(1<<(16-bits)-1)
	return PolicyPort{Protocol: protocol, First: port, Last: last}.String()
}

func verdictKeyOf(k bpf.VerdictKey) index.Key {
	b := append(index.Uint32(k.Set), byte(k.PrefixLen), k.Protocol)
	return append(b, k.Port[:]...)
}

var (
	verdictKey = UniqueIndex("key", KeysOf(verdictKeyOf, index.Uint32String),
		func(v *Verdict) bpf.VerdictKey { return v.Key })
	verdictPending = IndexIf("pending", Uint32Keys,
		func(v *Verdict) (uint32, bool) { return v.Key.Set, !isDone(v.Status) })
	verdictCookie = IndexIf("cookie", Uint32Keys,
		func(v *Verdict) (uint32, bool) { return v.Value.Cookie, v.Value.Cookie != 0 })

	// VerdictByKey queries the verdict under a key of the map.
	VerdictByKey = verdictKey.Query

	// VerdictsPending queries the verdicts of a set that the kernel does not have yet.
	VerdictsPending = verdictPending.Query

	// VerdictsByCookie queries the verdicts with a cookie.
	VerdictsByCookie = verdictCookie.Query
)

// VerdictsOfSet queries, with Prefix, the verdicts of a set.
func VerdictsOfSet(set uint32) statedb.Query[*Verdict] {
	return verdictKey.QueryFromKey(index.Uint32(set))
}

// NewVerdictTable creates the table of verdicts.
var NewVerdictTable = Declare("verdicts", verdictKey, verdictPending, verdictCookie)
