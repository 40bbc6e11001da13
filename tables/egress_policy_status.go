// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/statedb"
)

// EgressPolicyStatus is the status of an egress policy on this node: whether it is valid, which
// nodes are its gateways, what it loses to other policies, and whether the kernel has it.
type EgressPolicyStatus struct {
	Policy     string   `json:"policy"`
	Gateways   []string `json:"gateways,omitempty"` // elected nodes, or why none
	Rules      int      `json:"rules"`              // that it decides
	Programmed int      `json:"programmed"`         // of these, applied to all their pods
	Failed     int      `json:"failed"`             // of these, refused by the kernel
	Conflicts  []string `json:"conflicts,omitempty"`
	Errors     []string `json:"errors,omitempty"`

	UID        string   `json:"uid,omitempty"`
	Generation int64    `json:"generation,omitempty"`
	LosesTo    []string `json:"losesTo,omitempty"` // of Conflicts, those that it loses
	Refused    string   `json:"refused,omitempty"` // why the kernel refused something of a rule

	// Drops says why packets of its pods are dropped: no node is their gateway, or this node is
	// and has no egress address. Empty if they are not, or there are no such pods.
	Drops string `json:"drops,omitempty"`

	// Pending says why the policy is not applied, or why a former version still is, although all
	// of its rules are programmed.
	Pending string `json:"pending,omitempty"`

	// Applied is the last revision of the policy's row that was applied, without former versions;
	// 0 if there is none.
	Applied statedb.Revision `json:"-" yaml:"-"`
}

// EgressState is the state of an egress policy on this node.
type EgressState string

// The states of egress policies, worst first.
const (
	EgressFailed  EgressState = "failed"  // the kernel refused some of it
	EgressPending EgressState = "pending" // the kernel does not have all of it yet
	// no gateway, or one without an egress address: the traffic of its pods is dropped
	EgressNoGateway  EgressState = "no gateway"
	EgressInvalid    EgressState = "invalid"    // applied, except what is wrong
	EgressConflicted EgressState = "conflicted" // applied, except what it loses to older policies
	EgressInForce    EgressState = "in force"
)

// EgressStates are all states of egress policies.
var EgressStates = []EgressState{
	EgressFailed, EgressPending, EgressNoGateway, EgressInvalid, EgressConflicted, EgressInForce,
}

// State returns the first state that applies.
func (s *EgressPolicyStatus) State() EgressState {
	elected := func(gateway string) bool { return !strings.HasPrefix(gateway, NoGateway) }
	switch {
	case s.Failed > 0:
		return EgressFailed
	case s.Programmed < s.Rules || s.Pending != "":
		return EgressPending
	case s.Drops != "" || !slices.ContainsFunc(s.Gateways, elected):
		return EgressNoGateway
	case len(s.Errors) > 0:
		return EgressInvalid
	case len(s.LosesTo) > 0:
		return EgressConflicted
	default:
		return EgressInForce
	}
}

// Equal reports whether two rows say the same.
func (s *EgressPolicyStatus) Equal(o *EgressPolicyStatus) bool {
	return s.Policy == o.Policy && s.Rules == o.Rules && s.Programmed == o.Programmed &&
		s.Failed == o.Failed &&
		slices.Equal(s.Gateways, o.Gateways) && slices.Equal(s.Conflicts, o.Conflicts) &&
		slices.Equal(s.Errors, o.Errors) &&
		s.UID == o.UID && s.Generation == o.Generation && slices.Equal(s.LosesTo, o.LosesTo) &&
		s.Refused == o.Refused && s.Drops == o.Drops &&
		s.Pending == o.Pending && s.Applied == o.Applied
}

// TableHeader implements [statedb.TableWritable].
func (*EgressPolicyStatus) TableHeader() []string {
	return []string{
		"Policy", "State", "Gateways", "Programmed", "Failed", "Drops", "Conflicts", "Errors",
	}
}

// TableRow implements [statedb.TableWritable].
func (s *EgressPolicyStatus) TableRow() []string {
	return []string{
		s.Policy, string(s.State()), listColumn(s.Gateways, " | "),
		fmt.Sprintf("%d/%d", s.Programmed, s.Rules), fmt.Sprint(s.Failed), orDash(s.Drops),
		listColumn(s.Conflicts, "; "), listColumn(s.Errors, "; "),
	}
}

var (
	egressPolicyStatusIndex = UniqueIndex("policy", StringKeys,
		func(s *EgressPolicyStatus) string { return s.Policy })

	// EgressPolicyStatusByPolicy queries the status of a policy on this node.
	EgressPolicyStatusByPolicy = egressPolicyStatusIndex.Query
)

// NewEgressPolicyStatusTable creates the table of the status of egress policies.
var NewEgressPolicyStatusTable = Declare("egress-policy-status", egressPolicyStatusIndex)
