// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
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
}

// MissingLines is the reason of a [Missing] that stands for lines that cannot be read.
const MissingLines = "lines"

// Search reads the files of a ledger: the one of the path, and those that were put aside.
func Search(path string, q Question) (Answer, error) {
	files, err := openFiles(path)
	if err != nil {
		return Answer{}, err
	}
	s := search{question: q, needle: needle(q), open: map[holding]int{}, known: map[identity]int{}}
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
	extension := filepath.Ext(path)
	aside, err := filepath.Glob(strings.TrimSuffix(path, extension) + "-*" + extension)
	if err != nil {
		return []*os.File{last}, fmt.Errorf("find files of the ledger %s: %w", path, err)
	}
	slices.Sort(aside)
	for _, name := range aside {
		f, err := os.Open(name)
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
	needle   []byte           // in each line that matters but for those of no translation
	held     []Held           // all that there was
	open     map[holding]int  // indexes of those without an end
	known    map[identity]int // indexes of all
	missing  []Record
	clock    []Record
	at       time.Time // of the last line
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
		if errors.Is(err, io.EOF) {
			return nil // what comes is being written
		} else if err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		if !bytes.Contains(line, s.needle) && bytes.Contains(line, []byte(`"egress":`)) {
			continue
		}
		var r Record
		if unreadable || line[0] != '{' && len(line) > 1 {
			r = Record{Time: s.at, Event: Missing, Reason: MissingLines, Count: 1}
		} else if json.Unmarshal(line, &r) != nil {
			continue // one that was not finished is written again, or counted by the next start
		}
		s.at = r.Time
		s.take(&r)
	}
}

const maxLine = 1 << 20 // bytes, many times a record's

func (s *search) take(r *Record) {
	switch r.Event {
	case Missing:
		if n := len(s.missing); n > 0 && r.Reason == MissingLines &&
			s.missing[n-1].Reason == r.Reason && s.missing[n-1].Time.Equal(r.Time) {
			s.missing[n-1].Count += r.Count
			return
		}
		s.missing = append(s.missing, *r)
		for _, i := range s.open {
			// The agent finds ends that the kernel had no room for.
			s.held[i].mayEnd = s.held[i].mayEnd || r.Reason != MissingBuffer
		}
	case Start:
		if r.Reason == StartKilled && r.Count > 0 {
			s.missing = append(s.missing, *r)
		}
		for _, i := range s.open {
			// What goes on is found, and written again.
			if s.held[i].notSince.IsZero() && r.Reason != StartStopped {
				s.held[i].notSince = r.Time
			}
		}
	case Clock:
		s.clock = append(s.clock, *r)
	case Begin:
		s.begin(r)
	case End:
		s.end(r)
	}
}

func identityOf(r *Record) identity {
	return identity{holding{r.Protocol, r.Egress, r.Destination}, r.PodAddress, r.ID}
}

// begin takes in a begin. That of a translation that is known says that it goes on, or comes after
// its end, from another CPU or in a file whose name is of before the clock was set.
func (s *search) begin(r *Record) {
	id := identityOf(r)
	if i, ok := s.known[id]; ok {
		s.held[i].notSince, s.held[i].mayEnd = time.Time{}, false
		return
	}
	h := Held{Record: *r}
	s.known[id] = len(s.held)
	i, ok := s.open[id.holding] // its end has not come yet
	if ok && r.ID < s.held[i].ID && r.Time.Before(s.held[i].Time) {
		h.Until, h.EndReason = s.held[i].Time, EndEvicted // this one has been before
	} else {
		if ok {
			s.held[i].Until, s.held[i].EndReason = r.Time, EndEvicted
		}
		s.open[id.holding] = len(s.held)
	}
	s.held = append(s.held, h)
}

// end takes in an end. It may come after the next begin.
func (s *search) end(r *Record) {
	id := identityOf(r)
	i, ok := s.known[id]
	if !ok { // Its begin is missing, or was in a file that is gone.
		i = len(s.held)
		s.known[id] = i
		s.held = append(s.held, Held{Record: *r})
		s.held[i].Time, s.held[i].Reason = r.Began, ""
	}
	h := &s.held[i]
	if h.Until.IsZero() || h.Until.After(r.Time) { // else another had it before the end was written
		h.Until = r.Time
	}
	h.EndReason, h.LastUsed, h.notSince = r.Reason, r.LastUsed, time.Time{}
	if open, ok := s.open[id.holding]; ok && open == i {
		delete(s.open, id.holding)
	}
}

// finish sets the end of what has none in the files, and is known to have ended, or may have.
func (h *Held) finish() {
	switch {
	case !h.notSince.IsZero() && (h.Until.IsZero() || h.Until.After(h.notSince)):
		h.Until, h.EndReason = h.notSince, EndUnknown
	case h.Until.IsZero() && h.mayEnd:
		h.EndReason = EndUnknown
	}
}

// answer returns what matches the question.
func (s *search) answer() Answer {
	q := s.question
	a := Answer{Held: []Held{}, Missing: []Record{}, Clock: []Record{}}
	to := q.To
	if to.IsZero() {
		to = q.From
	}
	for _, h := range s.held {
		h.finish()
		switch {
		case h.Egress.Addr() != q.Egress, q.Port != 0 && h.Egress.Port() != q.Port,
			q.Protocol != "" && !strings.EqualFold(h.Protocol, q.Protocol),
			q.Destination.IsValid() && h.Destination.Addr() != q.Destination.Addr(),
			q.Destination.Port() != 0 && h.Destination.Port() != q.Destination.Port(),
			!to.IsZero() && h.Time.After(to),
			!q.From.IsZero() && !h.Until.IsZero() && h.Until.Before(q.From):
			continue
		}
		a.Held = append(a.Held, h)
	}
	slices.SortStableFunc(a.Held, func(x, y Held) int {
		return cmp.Or(x.Time.Compare(y.Time), y.Until.Compare(x.Until))
	})
	a.Missing, a.Clock = append(a.Missing, s.missing...), append(a.Clock, s.clock...)
	return a
}
