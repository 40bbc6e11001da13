// SPDX-License-Identifier: Apache-2.0

package ctmap

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// State is how far a connection has come.
type State string

// The states. Condemned and expired come first: they hide the others.
const (
	Condemned   State = "condemned"   // about to be deleted, as good as absent
	Expired     State = "expired"     // its time is over, and it is not removed yet
	SYN         State = "syn"         // TCP: nothing but SYN was seen
	Established State = "established" // TCP
	Closing     State = "closing"     // TCP: one side has sent FIN
	Closed      State = "closed"      // TCP: both sides have sent FIN, or one RST
	Unreplied   State = "unreplied"   // other protocols: only packets of the client
	Replied     State = "replied"
)

// States returns all states.
func States() []State {
	return []State{SYN, Established, Closing, Closed, Unreplied, Replied, Expired, Condemned}
}

// State returns the state of a connection of a protocol at a time of the maps'
// clock, in seconds.
func (e Entry) State(protocol Protocol, now uint32) State {
	const both = RxClosing | TxClosing
	switch {
	case e.Lifetime == 0:
		return Condemned
	case e.Lifetime < now:
		return Expired
	case protocol != unix.IPPROTO_TCP && e.RxFlagsSeen == 0:
		return Unreplied
	case protocol != unix.IPPROTO_TCP:
		return Replied
	case e.Flags&both == both:
		return Closed
	case e.Flags&both != 0:
		return Closing
	case e.Flags&SeenNonSYN != 0:
		return Established
	}
	return SYN
}

// Direction says which side is the client; of translations, which way the packet goes.
type Direction string

// The directions, of [Out] and [In].
const (
	DirectionOut Direction = "out"
	DirectionIn  Direction = "in"
)

// Direction returns the direction that tuple flags have.
func (f TupleFlags) Direction() Direction {
	if f&In != 0 {
		return DirectionIn
	}
	return DirectionOut
}

// NotKnown is an age that is not known, as of connections that the agent took
// over from the kernel.
const NotKnown = -1

// Record is an entry of a map of connections as people and programs read it, of
// either family and as of some time. Numbers are in host order.
type Record struct {
	Map         string         `json:"map"`
	Source      netip.AddrPort `json:"source"` // the client
	Destination netip.AddrPort `json:"destination"`
	Protocol    Protocol       `json:"protocol"`
	Direction   Direction      `json:"direction"`
	TupleFlags  []string       `json:"tupleFlags,omitempty"` // related, service
	State       State          `json:"state"`
	Flags       []string       `json:"flags,omitempty"`
	Packets     uint64         `json:"packets"`
	Bytes       uint64         `json:"bytes"`
	Gateway     netip.Addr     `json:"gateway,omitzero"` // that it is pinned to
	Generation  uint32         `json:"generation"`
	Cookie      uint32         `json:"cookie"`
	AgeSeconds  int64          `json:"ageSeconds"` // or NotKnown
	// negative: since when it has been expired; 0 if condemned
	ExpiresInSeconds int64 `json:"expiresInSeconds"`
}

// NewRecord returns the record of an entry of a map, as of a time of the maps'
// clock in seconds.
func NewRecord(mapName string, t Tuple, e Entry, now uint32) Record {
	r := Record{
		Map: mapName, Source: t.Source, Destination: t.Destination,
		Protocol: Protocol(t.Protocol), Direction: t.Flags.Direction(), TupleFlags: t.Flags.Others(),
		State: e.State(Protocol(t.Protocol), now), Flags: e.Flags.Names(),
		Packets: e.Packets, Bytes: e.Bytes, Gateway: e.Gateway.Addr(), Generation: e.Generation,
		Cookie:     e.Cookie,
		AgeSeconds: NotKnown,
	}
	if e.Created != 0 {
		r.AgeSeconds = Since(now, e.Created)
	}
	if e.Lifetime != 0 {
		r.ExpiresInSeconds = int64(e.Lifetime) - int64(now)
	}
	return r
}

// Since returns the seconds from a time of the maps' clock to a later one. What
// has happened since the later one was read is not in the future: it is 0 then.
func Since(now, then uint32) int64 { return max(0, int64(now)-int64(then)) }

// Tuple returns the connection.
func (r *Record) Tuple() Tuple {
	return Tuple{
		r.Source, r.Destination, uint8(r.Protocol), ParseTupleFlags(r.Direction, r.TupleFlags),
	}
}

// Expired reports whether the connection has expired or is condemned.
func (r *Record) Expired() bool { return r.State == Expired || r.State == Condemned }

// String returns the record on one line.
func (r Record) String() string {
	gateway := "-"
	if r.Gateway.IsValid() {
		gateway = r.Gateway.String()
	}
	return fmt.Sprintf("%s %s age=%s expires=%s packets=%d bytes=%d gateway=%s generation=%d"+
		" cookie=%d flags=%s",
		r.Tuple(), r.State, Seconds(r.AgeSeconds), r.expiry(), r.Packets, r.Bytes, gateway,
		r.Generation, r.Cookie, list(r.Flags))
}

func (r Record) expiry() string {
	if r.State == Condemned {
		return "-"
	}
	return fmt.Sprintf("%ds", r.ExpiresInSeconds)
}

// Seconds returns a number of seconds as text, "-" if it is [NotKnown].
func Seconds(n int64) string {
	if n == NotKnown {
		return "-"
	}
	return fmt.Sprintf("%ds", n)
}

func list(names []string) string {
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, ",")
}
