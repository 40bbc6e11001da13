// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"net/netip"
	"slices"
)

// Match says which records are wanted: those for which each field that is not
// empty has one of the values. The zero Match and a nil one are for all.
type Match struct {
	Prefixes   []netip.Prefix `json:"prefixes,omitempty"` // of either side
	Ports      []uint16       `json:"ports,omitempty"`    // of either side
	Protocols  []Protocol     `json:"protocols,omitempty"`
	States     []State        `json:"states,omitempty"`
	Directions []Direction    `json:"directions,omitempty"`
	Expired    bool           `json:"expired,omitempty"` // only what has expired or is condemned
}

// Empty reports whether everything matches.
func (m *Match) Empty() bool {
	return m == nil || !m.Expired && len(m.Prefixes)+len(m.Ports)+len(m.Protocols)+len(m.States)+len(m.Directions) == 0
}

// Record reports whether a connection matches.
func (m *Match) Record(r *Record) bool {
	return m == nil || m.Tuple(r.Tuple()) && m.State(r.State)
}

// State reports whether a state matches.
func (m *Match) State(s State) bool {
	if m == nil {
		return true
	}
	if m.Expired && s != Expired && s != Condemned {
		return false
	}
	return len(m.States) == 0 || slices.Contains(m.States, s)
}

// Tuple reports whether a tuple matches. More addresses may be given that count
// like its two sides: what a translation is to.
func (m *Match) Tuple(t Tuple, more ...netip.AddrPort) bool {
	if m == nil {
		return true
	}
	if len(m.Protocols) > 0 && !slices.Contains(m.Protocols, Protocol(t.Protocol)) {
		return false
	}
	if len(m.Directions) > 0 && !slices.Contains(m.Directions, t.Flags.Direction()) {
		return false
	}
	sides := append([]netip.AddrPort{t.Source, t.Destination}, more...)
	return m.anySide(sides, len(m.Prefixes) == 0, func(side netip.AddrPort) bool {
		return slices.ContainsFunc(m.Prefixes, func(p netip.Prefix) bool { return p.Contains(side.Addr().Unmap()) })
	}) && m.anySide(sides, len(m.Ports) == 0, func(side netip.AddrPort) bool {
		return slices.Contains(m.Ports, side.Port())
	})
}

func (m *Match) anySide(sides []netip.AddrPort, all bool, f func(netip.AddrPort) bool) bool {
	return all || slices.ContainsFunc(sides, f)
}
