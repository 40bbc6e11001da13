// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb/index"
)

// PolicyKind is the kind of a policy object. It is a number, as each rule and index
// entry of a policy has it.
type PolicyKind uint8

// The kinds in the order of their names: an [EgressPolicy] is made from PolicyEgress, a
// [NetworkPolicy] from the others.
const (
	PolicyCiliumClusterwide PolicyKind = iota + 1
	PolicyEgress
	PolicyCilium
	PolicyKubernetes
)

var policyKindNames = [...]string{
	PolicyCiliumClusterwide: "CiliumClusterwideNetworkPolicy",
	PolicyEgress:            "CiliumEgressGatewayPolicy",
	PolicyCilium:            "CiliumNetworkPolicy",
	PolicyKubernetes:        "NetworkPolicy",
}

// ParsePolicyKind parses the name of a kind.
func ParsePolicyKind(name string) (PolicyKind, error) {
	if at := slices.Index(policyKindNames[1:], name); at >= 0 {
		return PolicyKind(at + 1), nil
	}
	return 0, fmt.Errorf("unknown kind %q: want %s", name, strings.Join(policyKindNames[1:], ", "))
}

// String is the name of the kind.
func (k PolicyKind) String() string {
	if int(k) >= len(policyKindNames) {
		return fmt.Sprintf("PolicyKind(%d)", uint8(k))
	}
	return policyKindNames[k]
}

// Namespaced reports whether policies of the kind are of a namespace.
func (k PolicyKind) Namespaced() bool { return k == PolicyCilium || k == PolicyKubernetes }

// MarshalText implements [encoding.TextMarshaler].
func (k PolicyKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (k *PolicyKind) UnmarshalText(text []byte) (err error) {
	*k, err = ParsePolicyKind(string(text))
	return err
}

// NetworkPolicy is what the agent makes of a policy object, whatever its kind.
// No older version of the object stays applied. What cannot be used is named in
// Errors or Unsupported, and changes the meaning in the safe direction:
//
//   - an allow never lets more through than is written, see [PolicyTraffic];
//   - a deny never denies less;
//   - the default deny of a direction stays, whatever is wrong with its items;
//     it applies also if the field that might turn it off cannot be read;
//   - a rule with an invalid subject is left out in full, as it is not known which pods it
//     selects. So is a rule about nodes, which is unsupported.
type NetworkPolicy struct {
	Kind       PolicyKind `json:"kind"`
	Name       `yaml:",inline"`
	UID        string    `json:"uid,omitempty"`
	Created    time.Time `json:"created"`
	Generation int64     `json:"generation,omitempty"`

	Rules []PolicyRule `json:"rules,omitempty"`

	Errors      []FieldError `json:"errors,omitempty"`
	Unsupported []FieldError `json:"unsupported,omitempty"`
}

// PolicyID is the key of a policy. Those of the whole cluster have no namespace.
type PolicyID struct {
	Kind PolicyKind
	Name
}

// EgressPolicyID is the key of an egress policy among policies of other kinds.
func EgressPolicyID(name string) PolicyID { return PolicyID{PolicyEgress, Name{Name: name}} }

// Compare orders policies by kind, namespace and name.
func (id PolicyID) Compare(o PolicyID) int {
	return cmp.Or(
		cmp.Compare(id.Kind, o.Kind), cmp.Compare(id.Namespace, o.Namespace),
		cmp.Compare(id.Name.Name, o.Name.Name),
	)
}

// String is "kind/namespace/name", of a clusterwide one "kind/name".
func (id PolicyID) String() string {
	return id.Kind.String() + "/" + strings.TrimPrefix(id.Name.String(), "/")
}

// Key is the index key of the identity. Keys are in the order of the texts.
func (id PolicyID) Key() index.Key {
	key := append(make(index.Key, 0, 2+len(id.Namespace)+len(id.Name.Name)), byte(id.Kind))
	return append(append(append(key, id.Namespace...), '/'), id.Name.Name...)
}

// PolicyKeys are keys of indexes by a policy.
var PolicyKeys = KeysOf(PolicyID.Key, policyKeyFromString)

// policyKeyFromString also takes what the text of an identity begins with, from the
// whole kind on, for queries of a prefix.
func policyKeyFromString(text string) (index.Key, error) {
	name, rest, more := strings.Cut(text, "/")
	kind, err := ParsePolicyKind(name)
	if err != nil {
		return nil, err
	}
	key := index.Key{byte(kind)}
	if more && !kind.Namespaced() {
		key = append(key, '/')
	}
	return append(key, rest...), nil
}

// MarshalText implements [encoding.TextMarshaler].
func (id PolicyID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (id *PolicyID) UnmarshalText(text []byte) (err error) {
	*id, err = ParsePolicyID(string(text))
	return err
}

// ParsePolicyID parses the form kind/namespace/name, or kind/name.
func ParsePolicyID(text string) (PolicyID, error) {
	parts := strings.Split(text, "/")
	var name Name
	switch len(parts) {
	case 2:
		name = Name{Name: parts[1]}
	case 3:
		name = Name{Namespace: parts[1], Name: parts[2]}
	default:
		return PolicyID{}, fmt.Errorf("parse policy %q: want kind/namespace/name", text)
	}
	kind, err := ParsePolicyKind(parts[0])
	return PolicyID{kind, name}, err
}

// ID returns the key of the policy.
func (p *NetworkPolicy) ID() PolicyID { return PolicyID{p.Kind, p.Name} }

// TableHeader implements [statedb.TableWritable].
func (*NetworkPolicy) TableHeader() []string {
	return []string{"Kind", "Name", "Subjects", "Ingress", "Egress", "Unsupported", "Errors"}
}

// TableRow implements [statedb.TableWritable].
func (p *NetworkPolicy) TableRow() []string {
	var subjects, ingress, egress []string
	for _, r := range p.Rules {
		subjects = append(subjects, r.Subject.String())
		ingress = append(ingress, r.Ingress.String())
		egress = append(egress, r.Egress.String())
	}
	return []string{
		p.Kind.String(), strings.TrimPrefix(p.Name.String(), "/"), listColumn(subjects, " | "),
		listColumn(ingress, " | "), listColumn(egress, " | "),
		errorColumn(p.Unsupported), errorColumn(p.Errors),
	}
}

var (
	networkPolicyIDIndex = UniqueIndex("id", PolicyKeys,
		func(p *NetworkPolicy) PolicyID { return p.ID() })

	networkPolicySubjectIndex = IndexEach("subject", StringKeys,
		func(p *NetworkPolicy) []string {
			var subjects []EgressSelector
			for _, r := range p.Rules {
				subjects = append(subjects, r.Subject)
			}
			return AnchorsOf(subjects)
		})

	// NetworkPoliciesBySubject queries the policies with a subject that requires something
	// of label sets: see [LabelSet.Anchors].
	NetworkPoliciesBySubject = networkPolicySubjectIndex.Query

	// NetworkPolicyByID queries a network policy by its kind and name.
	NetworkPolicyByID = networkPolicyIDIndex.Query
)

// NewNetworkPolicyTable creates the table of network policies.
var NewNetworkPolicyTable = Declare(
	"network-policies", networkPolicyIDIndex, networkPolicySubjectIndex,
)
