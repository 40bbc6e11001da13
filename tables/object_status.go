// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Types of conditions.
const (
	ConditionAccepted   = "Accepted"   // of an egress policy or a pool: every field of it can be used
	ConditionProgrammed = "Programmed" // of an egress policy: it is applied on all nodes
	ConditionConflicted = "Conflicted" // of an egress policy: it loses destinations to others
	ConditionValid      = "Valid"      // of a policy of Cilium: every field of it can be used
)

// ConditionStatus says whether a condition holds.
type ConditionStatus string

// Values of ConditionStatus.
const (
	ConditionTrue    ConditionStatus = "True"
	ConditionFalse   ConditionStatus = "False"
	ConditionUnknown ConditionStatus = "Unknown"
)

// ReasonPending is the reason of a condition that is expected to become true by itself.
const ReasonPending = "Pending"

// Condition is an item of status.conditions, without the times.
type Condition struct {
	Type    string          `json:"type"`
	Status  ConditionStatus `json:"status"`
	Reason  string          `json:"reason,omitempty"`
	Message string          `json:"message,omitempty"`
}

func (c Condition) String() string {
	if c.Reason == "" {
		return fmt.Sprintf("%s=%s", c.Type, c.Status)
	}
	return fmt.Sprintf("%s=%s (%s)", c.Type, c.Status, c.Reason)
}

// StatusGateway is a gateway of an egress policy, or why there is none.
type StatusGateway struct {
	Node      string       `json:"node,omitempty"`
	EgressIPs []netip.Addr `json:"egressIPs,omitempty"`
	Reason    string       `json:"reason,omitempty"`
	Awaited   bool         `json:"awaited,omitempty"` // as of a [GatewayChoice]
}

func (g StatusGateway) String() string {
	switch {
	case g.Node == "":
		return "none: " + g.Reason
	case len(g.EgressIPs) > 0:
		return g.Node + " (" + strings.Join(stringsOf(g.EgressIPs), ", ") + ")"
	}
	return g.Node
}

// StatusNodes says on how many nodes an egress policy is applied.
type StatusNodes struct {
	Programmed int `json:"programmed"`
	Total      int `json:"total"`
}

func (n StatusNodes) String() string { return fmt.Sprintf("%d/%d", n.Programmed, n.Total) }

// NodeOutcome is the status of an egress policy on a node.
type NodeOutcome uint8

// The outcomes of a policy on a node.
const (
	OutcomeNone       NodeOutcome = iota // there is no such node, or no agent there
	OutcomeProgrammed                    // it has all of it
	OutcomeWaiting                       // it says that it does not have all of it yet
	OutcomeUnheard                       // it has said nothing of the object as it is now
	OutcomeSilent                        // its report has no room for it
	OutcomeFailed                        // it could not, and says why
	OutcomeNotReady                      // it does not have it, and it is not known when it will
)

// NodeException is a node of which there is more to say than that it has an egress policy.
type NodeException struct {
	Node    string
	Outcome NodeOutcome
	Error   string   // why it failed
	LosesTo []string // what it says that the policy loses
}

func (e NodeException) equal(o NodeException) bool {
	return e.Node == o.Node && e.Outcome == o.Outcome && e.Error == o.Error &&
		slices.Equal(e.LosesTo, o.LosesTo)
}

// Problem is what an Event is about.
type Problem struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`

	// Condition is the type of the condition that says the same, if one does.
	Condition string `json:"condition,omitempty"`
}

// ObjectStatus is what the object of a policy shall say about it. There are rows
// only while this operator leads.
type ObjectStatus struct {
	Policy     PolicyID `json:"policy"`
	UID        string   `json:"uid,omitempty"`
	Generation int64    `json:"generation,omitempty"`

	Conditions []Condition     `json:"conditions,omitempty"` // none: the kind has no status
	Gateways   []StatusGateway `json:"gateways,omitempty"`
	Nodes      StatusNodes     `json:"nodes"` // of an egress policy
	Problems   []Problem       `json:"problems,omitempty"`

	// Exceptions are those of an egress policy, by node: what the conditions and counts are made
	// of. They are no part of what the object says.
	Exceptions []NodeException `json:"-" yaml:"-"`

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (s *ObjectStatus) Equal(o *ObjectStatus) bool {
	return s.Policy == o.Policy && s.UID == o.UID && s.Generation == o.Generation &&
		slices.Equal(s.Conditions, o.Conditions) &&
		slices.EqualFunc(s.Gateways, o.Gateways, StatusGateway.equal) &&
		s.Nodes == o.Nodes && slices.Equal(s.Problems, o.Problems)
}

// SameExceptions reports whether two rows have the same exceptions.
func (s *ObjectStatus) SameExceptions(o *ObjectStatus) bool {
	return slices.EqualFunc(s.Exceptions, o.Exceptions, NodeException.equal)
}

func (g StatusGateway) equal(o StatusGateway) bool {
	return g.Node == o.Node && g.Reason == o.Reason && g.Awaited == o.Awaited &&
		slices.Equal(g.EgressIPs, o.EgressIPs)
}

// SameAnswer reports whether two rows say the same in other words, or of another
// number of nodes: with many nodes that is what changes all the time while a policy
// comes into force, and nothing to hurry for.
func (s *ObjectStatus) SameAnswer(o *ObjectStatus) bool {
	return s.UID == o.UID && s.Generation == o.Generation &&
		slices.EqualFunc(s.Gateways, o.Gateways, StatusGateway.equal) &&
		slices.EqualFunc(s.Conditions, o.Conditions, func(a, b Condition) bool {
			return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
		})
}

// Pending reports whether a condition is expected to become true by itself.
func (s *ObjectStatus) Pending() bool {
	return slices.ContainsFunc(
		s.Conditions, func(c Condition) bool { return c.Reason == ReasonPending },
	)
}

// TableHeader implements [statedb.TableWritable].
func (*ObjectStatus) TableHeader() []string {
	return []string{"Policy", "Conditions", "Gateways", "Nodes", "Problems", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (s *ObjectStatus) TableRow() []string {
	nodes := "-"
	if s.Policy.Kind == PolicyEgress {
		nodes = s.Nodes.String()
	}
	problems := make([]string, len(s.Problems))
	for i, p := range s.Problems {
		problems[i] = p.Reason + ": " + p.Message
	}
	return []string{
		s.Policy.String(), listColumn(stringsOf(s.Conditions), ", "),
		listColumn(stringsOf(s.Gateways), " | "), nodes,
		listColumn(problems, "; "), s.Status.Kind.String(), orDash(s.Status.GetError()),
	}
}

var (
	objectStatusIndex = UniqueIndex("policy", PolicyKeys,
		func(s *ObjectStatus) PolicyID { return s.Policy })

	// ObjectStatusByPolicy queries what the object of a policy shall say.
	ObjectStatusByPolicy = objectStatusIndex.Query
)

// NewObjectStatusTable creates the table of what objects shall say.
var NewObjectStatusTable = Declare("object-status", objectStatusIndex)
