// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"
)

// PolicyState says in a word how a network policy fares on this node.
type PolicyState string

// The states of a network policy; of those that apply it is the first.
const (
	PolicyInvalid     PolicyState = "invalid"     // a part of it cannot be used
	PolicyUnsupported PolicyState = "unsupported" // a part of it needs what the agent does not have
	PolicyFailed      PolicyState = "failed"      // the kernel refused an entry, or a pod of its class
	PolicyPending     PolicyState = "pending"     // the kernel does not have all of it yet, or not only it, or not all its pods in their classes
	PolicyNotHere     PolicyState = "not here"    // it chooses no pod on this node
	PolicyInForce     PolicyState = "in force"
)

// NetworkPolicyStatus answers, for a network policy on this node: is it valid, is
// what it says now in force, does the kernel have it?
type NetworkPolicyStatus struct {
	Policy PolicyID    `json:"policy"`
	State  PolicyState `json:"state"`

	Errors      []string `json:"errors,omitempty"`
	Unsupported []string `json:"unsupported,omitempty"`

	// Wanted is the revision of the policy's row, InForce that of which the rules
	// in force are; 0 if there are none yet.
	Generation int64            `json:"generation,omitempty"`
	Wanted     statedb.Revision `json:"wanted" yaml:"-"`
	InForce    statedb.Revision `json:"inForce" yaml:"-"`

	EntriesWanted int `json:"entriesWanted"` // that it decides, alone or with others
	Programmed    int `json:"programmed"`    // of these, in the kernel
	Failed        int `json:"failed"`        // of these, refused by the kernel

	// Settled is set when the kernel has what can be enforced of the policy, and
	// nothing more of what it said before.
	Settled bool `json:"settled"`

	// Written is set when the kernel has, or refuses, all that the rules in force say,
	// whether or not these are those that are wanted.
	Written bool `json:"-" yaml:"-"`

	// Since is when the wanted revision was first seen, Done when it was first
	// settled; zero until then.
	Since time.Time `json:"since" yaml:"-"`
	Done  time.Time `json:"done,omitzero" yaml:"-"`
}

// Equal reports whether two rows say the same.
func (s *NetworkPolicyStatus) Equal(o *NetworkPolicyStatus) bool {
	return s.Policy == o.Policy && s.State == o.State && slices.Equal(s.Errors, o.Errors) && slices.Equal(s.Unsupported, o.Unsupported) &&
		s.Generation == o.Generation && s.Wanted == o.Wanted && s.InForce == o.InForce && s.EntriesWanted == o.EntriesWanted &&
		s.Programmed == o.Programmed && s.Failed == o.Failed && s.Settled == o.Settled && s.Written == o.Written && s.Since.Equal(o.Since) && s.Done.Equal(o.Done)
}

// TableHeader implements [statedb.TableWritable].
func (*NetworkPolicyStatus) TableHeader() []string {
	return []string{"Kind", "Name", "State", "Programmed", "Failed", "Unsupported", "Errors"}
}

// TableRow implements [statedb.TableWritable].
func (s *NetworkPolicyStatus) TableRow() []string {
	return []string{
		s.Policy.Kind.String(), strings.TrimPrefix(s.Policy.Name.String(), "/"), string(s.State),
		fmt.Sprintf("%d/%d", s.Programmed, s.EntriesWanted), strconv.Itoa(s.Failed),
		listColumn(s.Unsupported, "; "), listColumn(s.Errors, "; "),
	}
}

var (
	networkPolicyStatusIndex = UniqueIndex("policy", PolicyKeys,
		func(s *NetworkPolicyStatus) PolicyID { return s.Policy })

	// NetworkPolicyStatusByPolicy queries how a policy fares on this node.
	NetworkPolicyStatusByPolicy = networkPolicyStatusIndex.Query
)

// NewNetworkPolicyStatusTable creates the table of how each policy fares.
var NewNetworkPolicyStatusTable = Declare("network-policy-status", networkPolicyStatusIndex)
