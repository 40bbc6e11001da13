// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// PathState is what this node's probes say of the path to a node.
type PathState string

const (
	// PathUnprobed is a node that has never answered: it runs a version without probes, or there
	// is no key. Whether its Node is Ready decides alone.
	PathUnprobed PathState = "unprobed"

	PathHealthy PathState = "healthy"

	// PathUnreachable is a node that does not answer while no other node does either: the network
	// of this node may be down. Nothing is moved.
	PathUnreachable PathState = "unreachable"

	// PathLost is a node that does not answer while others do.
	PathLost PathState = "lost"

	// PathRecovering is a node that was lost and answers again, but not for long enough.
	PathRecovering PathState = "recovering"
)

// GatewayHealth is the path from this node to a gateway, or to a witness, as probes find it.
type GatewayHealth struct {
	Node    string     `json:"node"`
	Addr    netip.Addr `json:"addr"`
	Witness bool       `json:"witness"`

	State  PathState `json:"state"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`

	// Losses is how often it was lost, since it was last healthy for long: it has to answer for
	// a longer time after each.
	Losses int `json:"losses"`

	History []PathChange `json:"history,omitempty"` // the last ones, oldest first
}

// PathChange is a former state of a path.
type PathChange struct {
	State PathState `json:"state"`
	Since time.Time `json:"since"`
}

// MaxPathHistory is how many former states a row has at most.
const MaxPathHistory = 16

// Lost reports whether no traffic should go by the gateway, if there is another one.
func (h *GatewayHealth) Lost() bool { return h.State == PathLost || h.State == PathRecovering }

// TableHeader implements [statedb.TableWritable].
func (*GatewayHealth) TableHeader() []string {
	return []string{"Node", "Address", "Witness", "State", "Since", "Losses", "History", "Reason"}
}

// TableRow implements [statedb.TableWritable].
func (h *GatewayHealth) TableRow() []string {
	var history []string
	for _, c := range h.History {
		history = append(history, string(c.State)+" "+c.Since.UTC().Format(time.RFC3339))
	}
	return []string{
		h.Node, h.Addr.String(), strconv.FormatBool(h.Witness), string(h.State),
		h.Since.UTC().Format(time.RFC3339), strconv.Itoa(h.Losses),
		orDash(strings.Join(history, ", ")), orDash(h.Reason),
	}
}

var (
	gatewayHealthNodeIndex = UniqueIndex("node", StringKeys,
		func(h *GatewayHealth) string { return h.Node })

	// GatewayHealthByNode queries the path to a node.
	GatewayHealthByNode = gatewayHealthNodeIndex.Query
)

// NewGatewayHealthTable creates the table of the paths to gateways.
var NewGatewayHealthTable = Declare("gateway-health", gatewayHealthNodeIndex)
