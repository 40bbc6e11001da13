// SPDX-License-Identifier: Apache-2.0

package natmap

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
)

// Translation is what the entries of both families say.
type Translation struct {
	Created uint64         `json:"created"`         // nanoseconds
	NeedsCT uint32         `json:"needsCT"`         // 1: goes with its conntrack entry
	Used    uint32         `json:"used"`            // seconds; 0: condemned
	Tunnel  netip.Addr     `json:"tunnel,omitzero"` // node that the pod's packets come from
	To      netip.AddrPort `json:"to"`
	Counter uint16         `json:"counter,omitempty"` // of its traffic
}

// Translation returns what the entry says.
func (e Entry4) Translation() Translation {
	return Translation{e.Created, e.NeedsCT, e.Used, e.Tunnel.Addr(), e.To(), e.Counter}
}

// Translation returns what the entry says.
func (e Entry6) Translation() Translation {
	return Translation{e.Created, e.NeedsCT, e.Used, e.Tunnel.Addr(), e.To(), e.Counter}
}

// NewEntry4 returns the entry of a translation to an IPv4 address.
func NewEntry4(t Translation) (Entry4, error) {
	addr := t.To.Addr().Unmap()
	if !addr.Is4() {
		return Entry4{}, fmt.Errorf("translation to %s: not IPv4", t.To)
	}
	return Entry4{
		Created: t.Created, NeedsCT: t.NeedsCT, Used: t.Used, Tunnel: bpf.AddressFrom(t.Tunnel),
		Addr: addr.As4(), Port: ctmap.PortFrom(t.To.Port()), Counter: t.Counter,
	}, nil
}

// NewEntry6 returns the entry of a translation to an IPv6 address.
func NewEntry6(t Translation) (Entry6, error) {
	if addr := t.To.Addr(); !addr.IsValid() || addr.Is4() {
		return Entry6{}, fmt.Errorf("translation to %s: not IPv6", t.To)
	}
	return Entry6{
		Created: t.Created, NeedsCT: t.NeedsCT, Used: t.Used, Tunnel: bpf.AddressFrom(t.Tunnel),
		Addr: t.To.Addr().As16(), Port: ctmap.PortFrom(t.To.Port()), Counter: t.Counter,
	}, nil
}

// Record is an entry of a map of translations as people and programs read it, of
// either family and as of some time. Numbers are in host order.
type Record struct {
	Map         string          `json:"map"`
	Source      netip.AddrPort  `json:"source"` // of packets as they come
	Destination netip.AddrPort  `json:"destination"`
	Protocol    ctmap.Protocol  `json:"protocol"`
	Direction   ctmap.Direction `json:"direction"` // out: packets of the pod, whose source is translated; in: replies, whose destination is
	TupleFlags  []string        `json:"tupleFlags,omitempty"`
	To          netip.AddrPort  `json:"to"`
	Tunnel      netip.Addr      `json:"tunnel,omitzero"` // node that the pod's packets come from
	NeedsCT     bool            `json:"needsCT"`         // goes with its conntrack entry
	Condemned   bool            `json:"condemned,omitempty"`
	AgeSeconds  int64           `json:"ageSeconds"`  // or ctmap.NotKnown
	IdleSeconds int64           `json:"idleSeconds"` // since it translated a packet of the pod, coarse; ctmap.NotKnown if condemned
}

// NewRecord returns the record of an entry of a map, as of a time of the maps'
// clock in seconds.
func NewRecord(mapName string, t ctmap.Tuple, to Translation, now uint32) Record {
	r := Record{
		Map: mapName, Source: t.Source, Destination: t.Destination, Protocol: ctmap.Protocol(t.Protocol),
		Direction: t.Flags.Direction(), TupleFlags: t.Flags.Others(), To: to.To, Tunnel: to.Tunnel,
		NeedsCT: to.NeedsCT != 0, Condemned: to.Used == 0, AgeSeconds: ctmap.NotKnown, IdleSeconds: ctmap.NotKnown,
	}
	if to.Created != 0 {
		r.AgeSeconds = ctmap.Since(now, uint32(to.Created/uint64(time.Second)))
	}
	if to.Used != 0 {
		r.IdleSeconds = ctmap.Since(now, to.Used)
	}
	return r
}

// Tuple returns the tuple of the packets that are translated.
func (r *Record) Tuple() ctmap.Tuple {
	return ctmap.Tuple{Source: r.Source, Destination: r.Destination, Protocol: uint8(r.Protocol),
		Flags: ctmap.ParseTupleFlags(r.Direction, r.TupleFlags)}
}

// Matches reports whether the record is wanted. Addresses and ports may be those
// of the tuple or what is translated to. Of the states a translation has
// condemned only: it does not expire by itself.
func (r *Record) Matches(m *ctmap.Match) bool {
	if m == nil {
		return true
	}
	if (m.Expired || len(m.States) > 0) && !(r.Condemned && m.State(ctmap.Condemned)) {
		return false
	}
	return m.Tuple(r.Tuple(), r.To)
}

// String returns the record on one line.
func (r Record) String() string {
	tunnel := "-"
	if r.Tunnel.IsValid() {
		tunnel = r.Tunnel.String()
	}
	s := fmt.Sprintf("%s to=%s tunnel=%s age=%s idle=%s", r.Tuple(), r.To, tunnel,
		ctmap.Seconds(r.AgeSeconds), ctmap.Seconds(r.IdleSeconds))
	if !r.NeedsCT {
		s += " needs-ct=no"
	}
	if r.Condemned {
		s += " condemned"
	}
	return s
}
