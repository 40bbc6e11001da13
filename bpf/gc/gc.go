// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// Maps are the maps of one set, the global ones or those of a cluster. Those that
// are nil do not exist.
type Maps struct {
	CT4TCP, CT4Any, CT6TCP, CT6Any *ebpf.Map
	NAT4, NAT6                     *ebpf.Map
}

// Shares are the maps that count what pods have of a set, and of ports. A pass counts
// anew. There are both or none.
type Shares struct{ Entries, Ports *ebpf.Map }

// Extras are maps beside those of a set. Those that are nil do not exist.
type Extras struct {
	Shares
	Ledger *bpf.Ledger // is told which translations end
}

// The maps of a set in the order in which a pass looks at them: connections
// first, as translations go with them. The numbers are those of the programs
// (bpf/programs/gc.h).
const (
	indexCT4TCP = iota
	indexCT4Any
	indexCT6TCP
	indexCT6Any
	indexNAT4
	indexNAT6
	mapCount // behind these are the counts of what pods have

	indexShares = iota - 1
	indexPorts
	allCount
)

// names are the names of the maps in the programs' object, in that order.
var names = [allCount]string{
	ctmap.CT4TCP, ctmap.CT4Any, ctmap.CT6TCP, ctmap.CT6Any, natmap.Name4, natmap.Name6,
	bpf.SharesMap, bpf.PortsMap,
}

func (m Maps) list(s Shares) [allCount]*ebpf.Map {
	return [allCount]*ebpf.Map{m.CT4TCP, m.CT4Any, m.CT6TCP, m.CT6Any, m.NAT4, m.NAT6, s.Entries, s.Ports}
}

// Method is a way to go through a map. [Collector.Run] chooses it for each map.
type Method string

// The methods.
const (
	Iterator Method = "iterator" // a BPF iterator, in runs of less than a millisecond
	Keys     Method = "keys"     // keys read by system calls, and a program for each entry
)

// Reason says why an entry was removed.
type Reason string

// The reasons.
const (
	Expired   Reason = "expired"   // of a connection: it ended; of a translation: its connection did
	Orphan    Reason = "orphan"    // translation whose connection is not known any more
	Released  Reason = "released"  // one of its addresses is gone
	Flushed   Reason = "flushed"   // everything was to go
	Condemned Reason = "condemned" // its removal had begun earlier
)

// Filter says what a pass removes. Without anything it only looks.
type Filter struct {
	Expired bool         // connections that have expired, with their translations
	Orphans bool         // translations without connection
	Addrs   []netip.Addr // what has one of these addresses, expired or not
	All     bool         // everything

	// Now is the time to compare with, in seconds of the clock that [Now] reads;
	// 0 is the present, as the kernel knows it.
	Now uint32

	// ReplyGrace is for how long UDP connections that pods began stay after they
	// have expired: the host's own connection tracking lets replies through for
	// longer, which must not be taken for connections of the other side.
	ReplyGrace time.Duration

	Survivor func(Entry) // if not nil, called for what stays
	Removed  func(Entry) // if not nil, called once for each entry that is removed, with its final value
}

// Entry is an entry of a map that a pass has come by.
type Entry struct {
	Map    string              `json:"map"`
	Tuple  ctmap.Tuple         `json:"tuple"`
	CT     *ctmap.Entry        `json:"ct,omitempty"`     // of a connection
	NAT    *natmap.Translation `json:"nat,omitempty"`    // of a translation
	Reason Reason              `json:"reason,omitempty"` // why it was removed; empty: it stays
}

// Pass says what was done to one map.
type Pass struct {
	Map    string `json:"map"`
	Method Method `json:"method"` // empty: it had no entries, and was not gone through

	// Entries.
	Scanned      uint64 `json:"scanned"`
	Expired      uint64 `json:"expired"`      // connections that had expired, removed
	Translations uint64 `json:"translations"` // entries removed with their connections
	Orphans      uint64 `json:"orphans"`      // translations without connection, removed
	Released     uint64 `json:"released"`
	Flushed      uint64 `json:"flushed"`
	Condemned    uint64 `json:"condemned"`
	Kept         uint64 `json:"kept"`     // expired, but with time left for replies, or just used
	Revived      uint64 `json:"revived"`  // were used just when they were to be removed, and stay
	Deferred     uint64 `json:"deferred"` // left to the next pass, as the removal could not be told
	Failed       uint64 `json:"failed"`   // could not be deleted

	Duration   time.Duration `json:"duration"`
	LongestRun time.Duration `json:"longestRun"` // for which the kernel was busy with it at a stretch, by the clock
	NextExpiry uint32        `json:"nextExpiry"` // earliest of what stays, seconds; 0: nothing does
}

// Removed returns how many entries the pass has removed, of this map and others.
func (p *Pass) Removed() uint64 {
	return p.Expired + p.Translations + p.Orphans + p.Released + p.Flushed + p.Condemned
}

// Ports are those of an egress address towards a destination.
type Ports struct {
	Egress   netip.Addr
	Remote   netip.AddrPort
	Protocol uint8
	Used     int
	Room     int // how many may be given out
}

// Counts are the numbers of entries that maps have.
type Counts struct {
	Now     uint32         // when they were counted, seconds of the maps' clock
	Entries map[string]int // by names of maps

	shares, ports int // counts that there are
}
