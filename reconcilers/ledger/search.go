// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Question asks which pods had an egress address, and when.
type Question struct {
	Egress      netip.Addr
	Port        uint16         // of it; 0: any
	Protocol    string         // TCP, UDP, ICMP or ICMPv6; empty: any
	Destination netip.AddrPort // zero: any; port 0: any of its ports
	From, To    time.Time      // at any time of these; both zero: of all
}

// Held says that a pod had an egress address and port towards a destination.
type Held struct {
	Record              // of its begin, or of its end if the begin is not in the files
	Until     time.Time `json:"until,omitzero"`      // zero: there is no end in the files
	EndReason string    `json:"endReason,omitempty"` // unknown without a time: it may be missing

	notSince time.Time // there may have been no more of it since then
	mayEnd   bool      // its end may be among missing records
}

// Answer is what the files say.
type Answer struct {
	Held    []Held   `json:"held"`    // in the order of their begin
	Missing []Record `json:"missing"` // where records are missing, or may be: after an agent was killed
	Clock   []Record `json:"clock"`   // where the node's clock was set

	// First is the time of the first line: of what was before the files do not tell.
	First time.Time `json:"first"`
}

// MissingLines is the reason of a [Missing] that stands for lines that cannot be read.
const MissingLines = "lines"

// Search reads the files of a ledger: the one of the path, and those that were put aside.
func Search(path string, q Question) (Answer, error) {
	files, err := openFiles(path)
	if err != nil {
		return Answer{}, err
	}
	if q.To.IsZero() {
		q.To = q.From
	}
	s := search{
		question: q, needle: needle(q), open: map[holding]*Held{}, known: map[identity]*Held{},
		past: map[uint64]bool{}, seed: maphash.MakeSeed(),
	}
	for _, f := range files {
		if err == nil {
			err = s.file(f)
		}
		_ = f.Close() // it was only read
	}
	if err != nil {
		return Answer{}, fmt.Errorf("search %w", err)
	}
	return s.answer(), nil
}

// openFiles opens the files of a ledger, the oldest first: their names sort by time. The agent may
// put the one of the path aside meanwhile: that is opened first, so that it is not left out.
func openFiles(path string) (files []*os.File, err error) {
	defer func() {
		for _, f := range files {
			if err != nil {
				_ = f.Close() // it was only read
			}
		}
	}()
	last, lastErr := os.Open(path)
	if lastErr != nil && !errors.Is(lastErr, fs.ErrNotExist) {
		return nil, fmt.Errorf("open the ledger: %w", lastErr)
	}
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(filepath.Clean(dir)) // in order of name
	if err != nil {
		return []*os.File{last}, fmt.Errorf("find files of the ledger %s: %w", path, err)
	}
	extension := filepath.Ext(base)
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, strings.TrimSuffix(base, extension)+"-") ||
			!strings.HasSuffix(name, extension) {
			continue
		}
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) { // it was the oldest
			continue
		} else if err != nil {
			return append(files, last), fmt.Errorf("open the ledger: %w", err)
		}
		if last != nil && sameFile(f, last) {
			_ = f.Close()
			continue
		}
		files = append(files, f)
	}
	if last != nil {
		files = append(files, last)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("find files of the ledger: %w", lastErr)
	}
	return files, nil
}

func sameFile(one, other *os.File) bool {
	a, errA := one.Stat()
	b, errB := other.Stat()
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// identity names one translation.
type identity struct {
	holding
	pod netip.AddrPort
	id  uint64
}

// holding is what one pod at a time has.
type holding struct {
	protocol            string
	egress, destination netip.AddrPort
}

type search struct {
	question Question
	needle   []byte             // in each line that matters but for those of no translation
	known    map[identity]*Held // all that there may have been at the time in question
	open     map[holding]*Held  // those without an end
	past     map[uint64]bool    // hashes of identities that have ended before: a begin may come late
	seed     maphash.Seed       // of these
	missing  []Record
	clock    []Record
	first    time.Time // of the first line
	at       time.Time // of the last one
}

// needle returns what lines about an egress address have in them.
func needle(q Question) []byte {
	text := netip.AddrPortFrom(q.Egress, q.Port).String()
	if q.Port == 0 {
		text = strings.TrimSuffix(text, "0")
	} else {
		text += `"`
	}
	return []byte(`"egress":"` + text)
}

func (s *search) file(f *os.File) error {
	lines := bufio.NewReaderSize(f, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		unreadable := errors.Is(err, bufio.ErrBufferFull) // zeros, after the node has lost its power
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = lines.ReadSlice('\n')
		}
		atEnd := errors.Is(err, io.EOF)
		if err != nil && !atEnd {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		// The last one is being written, or lacks nothing but its end, which had no room there.
		if len(line) > 0 {
			s.line(line, unreadable)
		}
		if len(s.known) > maxHeld {
			return fmt.Errorf("%s: more than %d translations match: ask for a port, a destination "+
				"or a time", f.Name(), maxHeld)
		}
		if atEnd {
			return nil
		}
	}
}

func (s *search) line(line []byte, unreadable bool) {
	if unreadable || bytes.IndexByte(line, 0) >= 0 { // the node has lost its power
		s.take(&Record{Time: s.at, Event: Missing, Reason: MissingLines, Count: 1})
		return
	}
	isOfOther := !bytes.Contains(line, s.needle) && bytes.Contains(line, []byte(`"egress":`))
	if isOfOther && !s.first.IsZero() {
		return
	}
	var r Record
	if json.Unmarshal(line, &r) != nil {
		return // one that was not finished is written again, or counted by the next start
	}
	if s.at = r.Time; s.first.IsZero() {
		s.first = r.Time
	}
	if !isOfOther {
		s.take(&r)
	}
}

const maxLine = 1 << 20 // bytes, many times a record's

// maxHeld bounds the memory of a search, which takes some 2 kB for each: where an agent runs there
// is little.
const maxHeld = 200_000

func (s *search) take(r *Record) {
	switch r.Event {
	case Missing:
		if n := len(s.missing); n > 0 && r.Reason == MissingLines &&
			s.missing[n-1].Reason == r.Reason && s.missing[n-1].Time.Equal(r.Time) {
			s.missing[n-1].Count += r.Count
			return
		}
		s.missing = append(s.missing, *r)
		for _, h := range s.open {
			// The agent finds ends that the kernel had no room for.
			h.mayEnd = h.mayEnd || r.Reason != MissingBuffer
		}
	case Start:
		if r.Reason == StartKilled && r.Count > 0 || r.Reason == StartNew && r.Time.After(s.first) {
			s.missing = append(s.missing, *r)
		}
		for _, h := range s.open {
			// What goes on is found, and written again.
			if h.notSince.IsZero() && r.Reason != StartStopped {
				h.notSince = r.Time
			}
		}
	case Clock:
		s.clock = append(s.clock, *r)
	case Begin, End:
		if !s.question.isAbout(r) {
			return
		}
		if r.Event == Begin {
			s.begin(r)
		} else {
			s.end(r)
		}
	}
}

// isAbout reports whether a record of a translation can matter, whatever its time.
func (q *Question) isAbout(r *Record) bool {
	return r.Egress.Addr() == q.Egress && (q.Port == 0 || r.Egress.Port() == q.Port) &&
		(q.Protocol == "" || strings.EqualFold(r.Protocol, q.Protocol)) &&
		(!q.Destination.IsValid() || r.Destination.Addr() == q.Destination.Addr()) &&
		(q.Destination.Port() == 0 || r.Destination.Port() == q.Destination.Port())
}

func identityOf(r *Record) identity {
	return identity{holding{r.Protocol, r.Egress, r.Destination}, r.PodAddress, r.ID}
}

// begin takes in a begin. That of a translation that is known says that it goes on, or comes after
// its end, from another CPU or in a file whose name is of before the clock was set.
func (s *search) begin(r *Record) {
	id := identityOf(r)
	if h, ok := s.known[id]; ok {
		h.notSince, h.mayEnd = time.Time{}, false
		return
	}
	if s.isPast(id) {
		return
	}
	h := &Held{Record: *r}
	before, ok := s.open[id.holding] // its end has not come yet
	if ok && r.ID < before.ID && r.Time.Before(before.Time) {
		h.Until, h.EndReason = before.Time, EndEvicted // this one has been before
		s.known[id] = h
		s.settle(h)
		return
	}
	if ok {
		before.Until, before.EndReason = r.Time, EndEvicted
		s.settle(before)
	}
	if s.isLater(r.Time) {
		delete(s.open, id.holding)
		return
	}
	s.known[id], s.open[id.holding] = h, h
}

// end takes in an end. It may come after the next begin.
func (s *search) end(r *Record) {
	id := identityOf(r)
	h, ok := s.known[id]
	if !ok { // Its begin is missing, or was in a file that is gone.
		if s.isPast(id) {
			return
		}
		if before := s.open[id.holding]; before != nil && before.Time.Before(r.Began) {
			before.Until, before.EndReason = r.Began, EndEvicted
			delete(s.open, id.holding)
			s.settle(before)
		}
		if s.isLater(r.Began) {
			return
		}
		h = &Held{Record: *r}
		h.Time, h.Reason = r.Began, ""
		s.known[id] = h
	}
	if h.Until.IsZero() || h.Until.After(r.Time) { // else another had it before the end was written
		h.Until = r.Time
	}
	h.EndReason, h.LastUsed, h.notSince = r.Reason, r.LastUsed, time.Time{}
	if s.open[id.holding] == h {
		delete(s.open, id.holding)
	}
	s.settle(h)
}

// isLater reports whether what begins at a time was not there at the time in question.
func (s *search) isLater(begins time.Time) bool {
	return !s.question.To.IsZero() && begins.After(s.question.To)
}

// settle forgets what has ended before the time in question.
func (s *search) settle(h *Held) {
	if h.Until.Before(s.question.From) {
		id := identityOf(&h.Record)
		delete(s.known, id)
		s.past[maphash.Comparable(s.seed, id)] = true
	}
}

func (s *search) isPast(id identity) bool { return s.past[maphash.Comparable(s.seed, id)] }

// finish sets the end of what has none in the files, and is known to have ended, or may have.
func (h *Held) finish() {
	switch {
	case !h.notSince.IsZero() && (h.Until.IsZero() || h.Until.After(h.notSince)):
		h.Until, h.EndReason = h.notSince, EndUnknown
	case h.Until.IsZero() && h.mayEnd:
		h.EndReason = EndUnknown
	}
}

// answer returns what was held at the time in question.
func (s *search) answer() Answer {
	q := s.question
	a := Answer{Held: []Held{}, Missing: []Record{}, Clock: []Record{}, First: s.first}
	for _, h := range s.known {
		if h.finish(); !q.To.IsZero() && h.Time.After(q.To) ||
			!h.Until.IsZero() && h.Until.Before(q.From) {
			continue
		}
		a.Held = append(a.Held, *h)
	}
	slices.SortFunc(a.Held, func(x, y Held) int {
		return cmp.Or(x.Time.Compare(y.Time), y.Until.Compare(x.Until), cmp.Compare(x.ID, y.ID),
			x.Egress.Compare(y.Egress), x.Destination.Compare(y.Destination))
	})
	a.Missing, a.Clock = append(a.Missing, s.missing...), append(a.Clock, s.clock...)
	return a
}
