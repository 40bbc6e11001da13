// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"
	"time"
)

// BGPSettings are those of a BGP session with a router.
type BGPSettings struct {
	LocalASN  uint32        `json:"localASN"`
	PeerASN   uint32        `json:"peerASN"`
	Addr      netip.Addr    `json:"addr"`
	Port      uint16        `json:"port"`
	HoldTime  time.Duration `json:"holdTime"`  // in whole seconds
	Keepalive time.Duration `json:"keepalive"` // in whole seconds
	// MultihopTTL is the TTL of packets to a router of another AS: 1 if it is on the link.
	MultihopTTL uint8 `json:"multihopTTL"`
}

// EgressBGPPeer is a router to which nodes announce their egress addresses that move, from an
// EgressBGPPeer object.
type EgressBGPPeer struct {
	Name    string    `json:"name"`
	UID     string    `json:"uid,omitempty"`
	Created time.Time `json:"created"`

	// Nodes is the canonical label selector of the nodes that have a session with the router;
	// empty selects all.
	Nodes string `json:"nodes,omitempty"`

	BGPSettings `yaml:",inline"`

	Errors []FieldError `json:"errors,omitempty"` // with any, no node has a session
}

// Before reports whether p wins over o where both have the same address: it is older, or of the
// same age and its name sorts first.
func (p *EgressBGPPeer) Before(o *EgressBGPPeer) bool {
	if !p.Created.Equal(o.Created) {
		return p.Created.Before(o.Created)
	}
	return p.Name < o.Name
}

// TableHeader implements [statedb.TableWritable].
func (*EgressBGPPeer) TableHeader() []string {
	return []string{
		"Name", "Address", "Port", "LocalASN", "PeerASN", "HoldTime", "Keepalive", "MultihopTTL",
		"Nodes", "Errors",
	}
}

// TableRow implements [statedb.TableWritable].
func (p *EgressBGPPeer) TableRow() []string {
	return []string{
		p.Name, addrColumn(p.Addr), strconv.Itoa(int(p.Port)),
		strconv.FormatUint(uint64(p.LocalASN), 10), strconv.FormatUint(uint64(p.PeerASN), 10),
		p.HoldTime.String(), p.Keepalive.String(), strconv.Itoa(int(p.MultihopTTL)),
		orDash(p.Nodes), errorColumn(p.Errors),
	}
}

var (
	egressBGPPeerNameIndex = UniqueIndex("name", StringKeys,
		func(p *EgressBGPPeer) string { return p.Name })

	// EgressBGPPeerByName queries a router by the name of its object.
	EgressBGPPeerByName = egressBGPPeerNameIndex.Query
)

// NewEgressBGPPeerTable creates the table of routers that egress addresses are announced to.
var NewEgressBGPPeerTable = Declare("egress-bgp-peers", egressBGPPeerNameIndex)

// EgressBGP says whether nodes announce egress addresses that move by BGP.
type EgressBGP struct{ Enabled bool }
