// SPDX-License-Identifier: Apache-2.0

package ctgc

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/gc"
)

// Reasons for passes, as in the table ct-gc-runs. Requests have others.
const (
	ReasonStart          = "start"           // the first one
	ReasonInterval       = "interval"        // some may have expired since the last one
	ReasonFilling        = "filling"         // a map is getting full
	ReasonPortsExhausted = "ports-exhausted" // a port to translate to was not to be had
	ReasonSharesUsedUp   = "shares-used-up"  // a pod had its share of connections or ports
	ReasonEndpointsGone  = "endpoints-gone"  // pods have released addresses
	ReasonRequest        = "request"         // by a request
)

var ownReasons = []string{
	ReasonStart, ReasonInterval, ReasonFilling, ReasonPortsExhausted, ReasonSharesUsedUp, ReasonEndpointsGone,
}

// maxReason is how many characters the reason of a request may have.
const maxReason = 64

// CheckReason returns what is wrong with the reason of a request: those of the
// runner's own are not for others, and it has to fit into a row.
func CheckReason(reason string) error {
	switch {
	case slices.Contains(ownReasons, reason):
		return fmt.Errorf("%q is for passes that are not requested", reason)
	case utf8.RuneCountInString(reason) > maxReason:
		return fmt.Errorf("longer than %d characters", maxReason)
	case !utf8.ValidString(reason) || strings.ContainsFunc(reason, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("%q has characters that cannot be printed", reason)
	}
	return nil
}

// The rules of the seed system for the interval, and those for maps that fill.
const (
	firstInterval = 5 * time.Minute
	minInterval   = 10 * time.Second

	shrinkAbove = 0.25 // share of expired entries in a map
	shrinkMost  = 0.9
	growBelow   = 0.05
	growBy      = 1.5

	// Of a map's room, with growth of fillingStep since the last pass. One pod has no more than
	// half of it, and must not be refused for want of a pass.
	filling     = 0.4
	fillingStep = 0.1

	// nearlyFull is where the kernel may evict entries, each of which may leave
	// translations behind. An entry may be missed by one pass: two have to be
	// made in the time in which such translations have to go.
	nearlyFull         = 0.9
	nearlyFullInterval = minInterval / 2

	// ReplyGrace is for how long UDP connections stay after they have expired:
	// see [gc.Filter]. Above gracelessFill there is no room for that.
	ReplyGrace    = time.Minute
	gracelessFill = 0.75
)

// schedule says when a pass through a set of maps is worth it.
//
// Entries are added by packets only, and expire no earlier than the last pass
// has seen: without either there is nothing to find. Between passes is at least
// the interval, which follows the share of entries that passes find expired; a
// map that fills is looked at before.
type schedule struct {
	fixed, longest time.Duration // of the interval; fixed: 0 if it adapts
	interval       time.Duration

	passed bool           // there was a pass, and it went well
	failed bool           // the last one did not
	last   time.Time      // when the last one ended
	counts map[string]int // of entries, since then
	// nextExpiry is the earliest that the last pass saw, in seconds of the maps'
	// clock, 0 if none. leftovers: it left some that could go soon after it.
	nextExpiry uint32
	leftovers  bool
	// packets that had passed by then, and by the pass before: one that came just
	// before a pass may have used what the next one is to remove.
	packets, packetsBefore uint64
}

func newSchedule(fixed, longest time.Duration) schedule {
	s := schedule{fixed: fixed, longest: longest, interval: min(firstInterval, longest), counts: map[string]int{}}
	if fixed > 0 {
		s.interval = fixed
	}
	return s
}

// observation is what is looked at to decide.
type observation struct {
	now     time.Time
	counts  gc.Counts
	sizes   map[string]uint32
	packets func() uint64 // counted up to now; reading it costs more than the rest
}

// empty reports whether there is no entry.
func (o *observation) empty() bool {
	for _, count := range o.counts.Entries {
		if count > 0 {
			return false
		}
	}
	return true
}

// fill returns how full a map is, from 0 to 1.
func (o *observation) fill(name string) float64 {
	if o.sizes[name] == 0 {
		return 0
	}
	return float64(o.counts.Entries[name]) / float64(o.sizes[name])
}

// grace returns for how long replies are to be let through.
func (o *observation) grace() time.Duration {
	if max(o.fill(ctmap.CT4Any), o.fill(ctmap.CT6Any)) > gracelessFill {
		return 0
	}
	return ReplyGrace
}

// decide returns why there should be a pass now, empty if there should be none.
func (s *schedule) decide(o *observation) string {
	grown := s.grown(o)
	since := o.now.Sub(s.last)
	switch {
	case o.empty():
		// As good as a pass.
		s.last, s.passed, s.failed, s.nextExpiry, s.leftovers = o.now, true, false, 0, false
		return ""
	case !s.passed && !s.failed:
		return ReasonStart
	case s.filling(o, since):
		return ReasonFilling
	case (s.failed || s.leftovers) && since >= minInterval:
		return ReasonInterval
	case since < s.interval:
		return ""
	case grown, s.nextExpiry != 0 && o.counts.Now > s.nextExpiry:
		return ReasonInterval
	case since >= max(s.interval, s.longest) && o.packets() != s.packetsBefore:
		// Connections that were closed expire earlier than they would have.
		return ReasonInterval
	}
	return ""
}

// grown reports whether a map has more entries than after the last pass, or
// than at some time since then.
func (s *schedule) grown(o *observation) (grown bool) {
	for name, count := range o.counts.Entries {
		if before := s.counts[name]; count > before {
			grown = true
		} else if count < before {
			s.counts[name] = count // another process has removed some
		}
	}
	return grown
}

// filling reports whether a map gets full so that the interval is too long.
func (s *schedule) filling(o *observation, since time.Duration) bool {
	for name, count := range o.counts.Entries {
		switch fill := o.fill(name); {
		case fill >= nearlyFull && since >= nearlyFullInterval:
			return o.packets() != s.packets
		case fill >= filling && since >= minInterval &&
			float64(count-s.counts[name]) >= fillingStep*float64(o.sizes[name]):
			return true
		}
	}
	return false
}

// made takes in what a pass came to, or that it failed. after is what is seen
// behind it.
func (s *schedule) made(reason string, passes []gc.Pass, err error, after *observation) {
	s.last, s.failed = after.now, err != nil
	s.packetsBefore, s.packets = s.packets, after.packets()
	s.counts = map[string]int{}
	maps.Copy(s.counts, after.counts.Entries)
	if err != nil {
		return
	}
	s.passed, s.nextExpiry, s.leftovers = true, 0, false
	grace := uint32(after.grace() / time.Second)
	for i := range passes {
		s.remains(&passes[i], after.counts.Now, grace)
	}
	if reason == ReasonStart || reason == ReasonInterval || reason == ReasonFilling {
		s.adapt(passes)
	}
}

// remains takes in what a pass has left of one map.
func (s *schedule) remains(p *gc.Pass, now, grace uint32) {
	// What it did not come by counts as added: it may have expired.
	seen := int(p.Scanned) - int(p.Removed()-p.Translations)
	s.counts[p.Map] = min(s.counts[p.Map], max(seen, 0))

	next := p.NextExpiry
	switch {
	case p.Failed > 0:
		next = now
	case next != 0 && next < now:
		next += grace // it is there for late replies
	}
	if next != 0 && (s.nextExpiry == 0 || next < s.nextExpiry) {
		s.nextExpiry = next
	}
	unusedSoon := p.NextExpiry == 0 && p.Kept > 0 // translations that were used just now
	s.leftovers = s.leftovers || p.Deferred > 0 || unusedSoon
}

// adapt has the interval follow the largest share that expired of a map.
func (s *schedule) adapt(passes []gc.Pass) {
	if s.fixed > 0 {
		return
	}
	var share float64
	for _, p := range passes {
		if p.Scanned > 0 {
			share = max(share, float64(p.Expired+p.Orphans+p.Condemned)/float64(p.Scanned))
		}
	}
	switch {
	case share > shrinkAbove:
		s.interval = time.Duration(float64(s.interval) * (1 - min(share, shrinkMost)))
	case share < growBelow:
		s.interval = time.Duration(float64(s.interval) * growBy)
	}
	s.interval = min(max(s.interval.Round(time.Second), minInterval), s.longest)
}

// next returns when the next pass may be at the earliest, if nothing hurries it.
func (s *schedule) next() time.Time {
	if s.last.IsZero() {
		return time.Time{}
	}
	return s.last.Add(s.interval)
}
