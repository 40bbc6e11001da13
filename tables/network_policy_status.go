// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
)

// PolicyState is the state of a network policy on this node, in a word.
type PolicyState string

// The states of a network policy: the first that applies.
const (
	PolicyTooLarge    PolicyState = "too large"   // pods that it selects are isolated instead
	PolicyInvalid     PolicyState = "invalid"     // a part of it cannot be used
	PolicyUnsupported PolicyState = "unsupported" // a part of it needs what the agent does not have
	PolicyFailed      PolicyState = "failed"      // the kernel refused some of it, or a pod
	// not in the kernel yet, or a former version still is
	PolicyPending PolicyState = "pending"
	PolicyNotHere PolicyState = "not here" // it selects no pod on this node
	PolicyInForce PolicyState = "in force"
)

// NetworkPolicyStatus is the status of a network policy on this node: whether it is valid, and
// whether its present version is applied.
type NetworkPolicyStatus struct {
	Policy PolicyID    `json:"policy"`
	State  PolicyState `json:"state"`

	Errors      []string `json:"errors,omitempty"`
	Unsupported []string `json:"unsupported,omitempty"`

	// Wanted is the revision of the policy's row. Compiled is the revision in the rulesets of all
	// label sets that the policy selects, 0 if there are none yet. Applied says whether the kernel
	// has these rulesets.
	Generation int64            `json:"generation,omitempty"`
	Wanted     statedb.Revision `json:"wanted" yaml:"-"`
	Compiled   statedb.Revision `json:"compiled" yaml:"-"`

	// EntriesWanted counts the label sets of pods of this node that it selects, each of which
	// is an entry of sluice_subjects.
	EntriesWanted int    `json:"entriesWanted"`
	Programmed    int    `json:"programmed"`         // of these, up to date in the kernel
	Failed        int    `json:"failed"`             // of these, refused by the kernel
	Refused       string `json:"refused,omitempty"`  // why, for one of them
	TooLarge      string `json:"tooLarge,omitempty"` // why its pods are isolated instead

	// Applied is set when the kernel has everything that can be enforced of the policy for all pods
	// that it selects, and nothing of former versions. It is never set if that is too large.
	Applied bool `json:"applied"`

	// WasApplied is set once the wanted revision has been applied.
	WasApplied bool `json:"wasApplied"`
}

// Equal reports whether two rows say the same.
func (s *NetworkPolicyStatus) Equal(o *NetworkPolicyStatus) bool {
	return s.Policy == o.Policy && s.State == o.State &&
		slices.Equal(s.Errors, o.Errors) && slices.Equal(s.Unsupported, o.Unsupported) &&
		s.Generation == o.Generation && s.Wanted == o.Wanted && s.Compiled == o.Compiled &&
		s.EntriesWanted == o.EntriesWanted && s.Programmed == o.Programmed &&
		s.Failed == o.Failed && s.Refused == o.Refused && s.TooLarge == o.TooLarge &&
		s.Applied == o.Applied && s.WasApplied == o.WasApplied
}

// TableHeader implements [statedb.TableWritable].
func (*NetworkPolicyStatus) TableHeader() []string {
	return []string{
		"Kind", "Name", "State", "Programmed", "Failed", "TooLarge", "Unsupported", "Errors",
	}
}

// TableRow implements [statedb.TableWritable].
func (s *NetworkPolicyStatus) TableRow() []string {
	return []string{
		s.Policy.Kind.String(), strings.TrimPrefix(s.Policy.Name.String(), "/"), string(s.State),
		fmt.Sprintf("%d/%d", s.Programmed, s.EntriesWanted), strconv.Itoa(s.Failed),
		orDash(s.TooLarge), listColumn(s.Unsupported, "; "), listColumn(s.Errors, "; "),
	}
}

var (
	networkPolicyStatusIndex = UniqueIndex("policy", PolicyKeys,
		func(s *NetworkPolicyStatus) PolicyID { return s.Policy })

	// NetworkPolicyStatusByPolicy queries the status of a policy on this node.
	NetworkPolicyStatusByPolicy = networkPolicyStatusIndex.Query
)

// NewNetworkPolicyStatusTable creates the table of the status of network policies.
var NewNetworkPolicyStatusTable = Declare("network-policy-status", networkPolicyStatusIndex)
