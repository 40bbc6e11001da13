// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"
	"time"
)

// EgressBGPSession is the BGP session of this node with a router that selects it: what is
// wanted, and the state in which the session is.
type EgressBGPSession struct {
	Peer string `json:"peer"` // name of the EgressBGPPeer

	BGPSettings `yaml:",inline"`

	// Refused is why this node has no session with the router, empty if it has one.
	Refused string `json:"refused,omitempty"`

	State     string    `json:"state,omitempty"`     // of RFC 4271, such as "established"
	Since     time.Time `json:"since,omitzero"`      // when the state was entered
	Announced int       `json:"announced"`           // addresses that the router has from this node
	LastError string    `json:"lastError,omitempty"` // why the last session ended

	Reconciled `yaml:",inline"`
}

// BGPEstablished is the state of a session in which routes are exchanged.
const BGPEstablished = "established"

// Equal reports whether two rows want the same, whatever the state of the session.
func (s *EgressBGPSession) Equal(o *EgressBGPSession) bool {
	return s.Peer == o.Peer && s.BGPSettings == o.BGPSettings && s.Refused == o.Refused
}

// TableHeader implements [statedb.TableWritable].
func (*EgressBGPSession) TableHeader() []string {
	return []string{
		"Peer", "Address", "State", "Announced", "Refused", "LastError", "Since", "Status", "Error",
	}
}

// TableRow implements [statedb.TableWritable].
func (s *EgressBGPSession) TableRow() []string {
	since := ""
	if !s.Since.IsZero() {
		since = s.Since.UTC().Format(time.RFC3339)
	}
	return []string{
		s.Peer, addrColumn(s.Addr), orDash(s.State), strconv.Itoa(s.Announced), orDash(s.Refused),
		orDash(s.LastError), orDash(since), s.Status.Kind.String(), orDash(s.Status.GetError()),
	}
}

var (
	egressBGPSessionPeerIndex = UniqueIndex("peer", StringKeys,
		func(s *EgressBGPSession) string { return s.Peer })

	// EgressBGPSessionByPeer queries a session by the name of the router's object.
	EgressBGPSessionByPeer = egressBGPSessionPeerIndex.Query
)

// NewEgressBGPSessionTable creates the table of this node's BGP sessions.
var NewEgressBGPSessionTable = Declare("egress-bgp-sessions", egressBGPSessionPeerIndex)
