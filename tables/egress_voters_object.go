// SPDX-License-Identifier: Apache-2.0

package tables

import "time"

// EgressVotersName is the name of the ConfigMap with the nodes that vote on egress addresses, in
// the namespace of the agents. Its data has one key, EgressVotersKey, with [EgressVotersInObject]
// in JSON.
const (
	EgressVotersName = "sluice-egress-voters"
	EgressVotersKey  = "voters"
)

// EgressVotersInObject are the nodes that vote, as the ConfigMap has them.
type EgressVotersInObject struct {
	Generation int64              `json:"generation"` // 1 to 1<<32 - 1
	Since      time.Time          `json:"since"`
	Sets       []VoterSetInObject `json:"sets"` // one, or two: see [EgressVoters]
}

// VoterSetInObject is a set of nodes that vote, as the ConfigMap has it.
type VoterSetInObject struct {
	Number int64                 `json:"number"` // 1 to 1<<32 - 1
	Voters []EgressVoterInObject `json:"voters"` // 1 to MaxEgressVoters, in any order
}

// EgressVoterInObject is a node that votes, as the ConfigMap has it.
type EgressVoterInObject struct {
	Node string `json:"node"`
	Addr string `json:"addr"` // its underlay address
}
