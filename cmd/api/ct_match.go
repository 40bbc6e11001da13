// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

// CTMatch says which connections are wanted: of each field that is not empty, one
// of the values has to match.
type CTMatch struct {
	Pods       []string `json:"pods,omitempty"`       // addresses or prefixes of pods, of either side
	IPs        []string `json:"ips,omitempty"`        // addresses or prefixes, of either side
	Ports      []uint16 `json:"ports,omitempty"`      // of either side
	Protocols  []string `json:"protocols,omitempty"`  // names or numbers
	States     []string `json:"states,omitempty"`     // see [ctmap.States]
	Directions []string `json:"directions,omitempty"` // out, in
	Family     string   `json:"family,omitempty"`     // ipv4, ipv6
	Expired    bool     `json:"expired,omitempty"`    // only what has expired
}

// Values of CTMatch.Family.
const (
	FamilyIPv4 = "ipv4"
	FamilyIPv6 = "ipv6"
)

// Empty reports whether everything is wanted.
func (m *CTMatch) Empty() bool {
	return !m.Expired && m.Family == "" &&
		len(m.Pods)+len(m.IPs)+len(m.Ports)+len(m.Protocols)+len(m.States)+len(m.Directions) == 0
}

// Parse returns the match in a form that can be applied. An error names the
// field, or its value.
func (m *CTMatch) Parse() (*ParsedMatch, error) {
	p := &ParsedMatch{Match: ctmap.Match{Ports: m.Ports, Expired: m.Expired}, pods: map[netip.Addr]struct{}{}, family: m.Family}
	if m.Family != "" && m.Family != FamilyIPv4 && m.Family != FamilyIPv6 {
		return nil, fmt.Errorf("family %q: want %s or %s", m.Family, FamilyIPv4, FamilyIPv6)
	}
	pods, err := parseEach("pods", m.Pods, ctmap.ParsePrefix)
	if err != nil {
		return nil, err
	}
	for _, prefix := range pods {
		if prefix.IsSingleIP() {
			p.pods[prefix.Addr()] = struct{}{}
		} else {
			p.podPrefixes = append(p.podPrefixes, prefix)
		}
	}
	if p.Prefixes, err = parseEach("ips", m.IPs, ctmap.ParsePrefix); err != nil {
		return nil, err
	}
	if p.Protocols, err = parseEach("protocols", m.Protocols, ctmap.ParseProtocol); err != nil {
		return nil, err
	}
	if p.States, err = parseEach("states", m.States, ctmap.ParseState); err != nil {
		return nil, err
	}
	p.Directions, err = parseEach("directions", m.Directions, ctmap.ParseDirection)
	return p, err
}

func parseEach[T any](field string, texts []string, parse func(string) (T, error)) (values []T, err error) {
	for i, text := range texts {
		v, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", field, i, err)
		}
		values = append(values, v)
	}
	return values, nil
}

// ParsedMatch is a [CTMatch] that can be applied.
type ParsedMatch struct {
	ctmap.Match
	pods        map[netip.Addr]struct{} // there may be thousands, as a name stands for all that begin so
	podPrefixes []netip.Prefix
	family      string
}

// Family reports whether connections of a family may match.
func (p *ParsedMatch) Family(is6 bool) bool {
	return p.family == "" || is6 == (p.family == FamilyIPv6)
}

// Connection reports whether a connection matches, at a time of the maps' clock
// in seconds.
func (p *ParsedMatch) Connection(t ctmap.Tuple, e *ctmap.Entry, now uint32) bool {
	return p.Translation(t) && p.State(e.State(ctmap.Protocol(t.Protocol), now))
}

// Translation reports whether a translation matches; to is what it is to, which
// counts like the sides of the tuple. It has no state.
func (p *ParsedMatch) Translation(t ctmap.Tuple, to ...netip.AddrPort) bool {
	return p.Family(t.Is6()) && p.Tuple(t, to...) && p.pod(t, to)
}

func (p *ParsedMatch) pod(t ctmap.Tuple, to []netip.AddrPort) bool {
	if len(p.pods)+len(p.podPrefixes) == 0 {
		return true
	}
	return p.ofPod(t.Source) || p.ofPod(t.Destination) || slices.ContainsFunc(to, p.ofPod)
}

func (p *ParsedMatch) ofPod(side netip.AddrPort) bool {
	_, ok := p.pods[side.Addr()]
	return ok || slices.ContainsFunc(p.podPrefixes, func(prefix netip.Prefix) bool { return prefix.Contains(side.Addr()) })
}
