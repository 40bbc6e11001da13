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
	At          time.Time      // zero: at any time
}

// Held says that a pod had an egress address and port towards a destination.
type Held struct {
	Record              // of its begin, or of its end if the begin is not in the files
	Until     time.Time `json:"until,omitzero"` // zero: there is no end in the files
	EndReason string    `json:"endReason,omitempty"`
}

// Answer is what the files say.
type Answer struct {
	Held    []Held   `json:"held"`    // in the order of their begin
	Missing []Record `json:"missing"` // where records are missing, or may be: after an agent was killed
}

// Search reads the files of a ledger: the one of the path, and those that were put aside.
func Search(path string, q Question) (Answer, error) {
	files, err := filesOf(path)
	if err != nil {
		return Answer{}, err
	}
	s := search{question: q, needle: needle(q), open: map[holding]int{}, begun: map[identity]int{}}
	for _, name := range files {
		if err := s.file(name); err != nil {
			return Answer{}, fmt.Errorf("search %s: %w", name, err)
		}
	}
	return s.answer(), nil
}

// filesOf returns the files of a ledger, the oldest first: their names sort by time.
func filesOf(path string) ([]string, error) {
	extension := filepath.Ext(path)
	aside, err := filepath.Glob(strings.TrimSuffix(path, extension) + "-*" + extension)
	if err != nil {
		return nil, fmt.Errorf("find files of the ledger %s: %w", path, err)
	}
	slices.Sort(aside)
	switch _, err := os.Stat(path); {
	case err == nil:
		return append(aside, path), nil
	case errors.Is(err, fs.ErrNotExist) && len(aside) > 0:
		return aside, nil
	default:
		return nil, fmt.Errorf("find files of the ledger: %w", err)
	}
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
	needle   []byte          // in each line that matters but for a start and missing records
	held     []Held          // all that there was
	open     map[holding]int // indexes of those without an end
	begun    map[identity]int
	missing  []Record
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

func (s *search) file(name string) error {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) { // it was the oldest
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil // what comes is being written
		} else if err != nil {
			return err
		}
		if !bytes.Contains(line, s.needle) && bytes.Contains(line, []byte(`"egress":`)) {
			continue
		}
		var r Record
		if json.Unmarshal(line, &r) != nil {
			continue // a line that was not finished
		}
		s.take(&r)
	}
}

func (s *search) take(r *Record) {
	key := holding{r.Protocol, r.Egress, r.Destination}
	switch r.Event {
	case Missing:
		s.missing = append(s.missing, *r)
	case Start:
		if r.Reason == StartKilled {
			s.missing = append(s.missing, *r)
		}
		if r.Reason == StartNew {
			for _, i := range s.open {
				s.held[i].Until, s.held[i].EndReason = r.Time, EndUnknown
			}
			clear(s.open)
		}
	case Begin:
		if i, ok := s.open[key]; ok { // its end has not come yet
			s.held[i].Until, s.held[i].EndReason = r.Time, EndEvicted
		}
		s.open[key] = len(s.held)
		s.begun[identity{key, r.PodAddress, r.ID}] = len(s.held)
		s.held = append(s.held, Held{Record: *r})
	case End:
		s.end(key, r)
	}
}

// end takes in an end. It may come after the next begin.
func (s *search) end(key holding, r *Record) {
	if i, ok := s.begun[identity{key, r.PodAddress, r.ID}]; ok {
		s.held[i].set(r)
		if open, ok := s.open[key]; ok && open == i {
			delete(s.open, key)
		}
		return
	}
	// Its begin is missing, or was in a file that is gone.
	h := Held{Record: *r}
	h.Time, h.Reason = r.Began, ""
	h.set(r)
	s.held = append(s.held, h)
}

func (h *Held) set(end *Record) {
	h.Until, h.EndReason, h.LastUsed = end.Time, end.Reason, end.LastUsed
}

// answer returns what matches the question.
func (s *search) answer() Answer {
	q := s.question
	a := Answer{Held: []Held{}, Missing: []Record{}}
	for _, h := range s.held {
		switch {
		case h.Egress.Addr() != q.Egress, q.Port != 0 && h.Egress.Port() != q.Port,
			q.Protocol != "" && !strings.EqualFold(h.Protocol, q.Protocol),
			q.Destination.IsValid() && h.Destination.Addr() != q.Destination.Addr(),
			q.Destination.Port() != 0 && h.Destination.Port() != q.Destination.Port(),
			!q.At.IsZero() && (h.Time.After(q.At) || !h.Until.IsZero() && h.Until.Before(q.At)):
			continue
		}
		a.Held = append(a.Held, h)
	}
	slices.SortStableFunc(a.Held, func(x, y Held) int {
		return cmp.Or(x.Time.Compare(y.Time), y.Until.Compare(x.Until))
	})
	a.Missing = append(a.Missing, s.missing...)
	return a
}
