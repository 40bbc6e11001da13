// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"time"
	"unique"

	"github.com/cilium/ebpf"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// tuple is what one translation at a time has: an egress address and port towards a destination.
type tuple struct {
	egress, remote         bpf.Address
	egressPort, remotePort [2]byte
	protocol               uint8
}

func tupleOf(r *bpf.LedgerRecord) tuple {
	return tuple{r.Egress, r.Remote, r.EgressPort, r.RemotePort, r.Protocol}
}

// translation is one that has begun, and has no end yet.
type translation struct {
	began   uint64 // nanoseconds of CLOCK_MONOTONIC
	used    uint32 // seconds of it: when a packet had last used it at the last comparison
	round   uint32 // the last comparison that has found it
	pod     bpf.Address
	podPort [2]byte
	owner   unique.Handle[owner]
}

// record returns what the record of its begin says, and when it was last used.
func (t *translation) record(key tuple) bpf.LedgerRecord {
	return bpf.LedgerRecord{
		Time: t.began, Began: t.began, Used: max(t.used, uint32(t.began/uint64(time.Second))),
		Pod: t.pod, PodPort: t.podPort, Egress: key.egress, EgressPort: key.egressPort,
		Remote: key.remote, RemotePort: key.remotePort, Protocol: key.protocol,
	}
}

// absent is a translation that the kernel has no more. Its end may still come.
type absent struct {
	translation
	since  uint64 // nanoseconds of CLOCK_MONOTONIC
	reason string
}

// openID names one translation: the tuple may have been another's before.
type openID struct {
	tuple
	began uint64
}

// openSet has the translations that have begun and have no end yet. The kernel evicts translations
// from a full map without a record: compare finds these, as they are absent and no end comes. No
// more begin between two comparisons than half of the room in the maps, and no more absent ones
// wait for their ends. Without maps it only knows whose the open ones are.
type openSet struct {
	maps []translations
	room int // as many entries fit into the maps; a translation has two

	open   map[tuple]translation
	absent map[openID]absent
	order  []openID // of absent ones, the longest absent first; some may be gone
	found  []openID // whose begin has not been read; some may have ended

	round  uint32
	began  int    // since the last comparison
	missed uint64 // records that had not fitted into the kernel's buffer at the last comparison
}

// translations is a map of one family.
type translations struct {
	*ebpf.Map
	walk func(*ebpf.Map, func(bpf.LedgerRecord)) error
}

func newOpenSet(l *bpf.Ledger) *openSet {
	o := &openSet{open: map[tuple]translation{}, absent: map[openID]absent{}}
	for _, m := range []translations{
		{l.NAT4, walk[natmap.Key4, natmap.Entry4]}, {l.NAT6, walk[natmap.Key6, natmap.Entry6]},
	} {
		if m.Map != nil {
			o.maps, o.room = append(o.maps, m), o.room+int(m.MaxEntries())
		}
	}
	return o
}

// walk calls a function with what its begin says, for each translation of a map.
func walk[K interface {
	comparable
	Tuple() ctmap.Tuple
}, V interface {
	comparable
	Translation() natmap.Translation
}](m *ebpf.Map, each func(bpf.LedgerRecord)) error {
	for entries, err := range bpf.WalkKernel[K, V](m) {
		if err != nil {
			return err
		}
		for _, e := range entries {
			replies := e.Key.Tuple()
			if replies.Flags&ctmap.In == 0 {
				continue
			}
			to := e.Value.Translation()
			each(bpf.LedgerRecord{
				Began: to.Created, Used: to.Used,
				Pod: bpf.AddressFrom(to.To.Addr()), PodPort: ctmap.PortFrom(to.To.Port()),
				Egress:     bpf.AddressFrom(replies.Destination.Addr()),
				EgressPort: ctmap.PortFrom(replies.Destination.Port()),
				Remote:     bpf.AddressFrom(replies.Source.Addr()),
				RemotePort: ctmap.PortFrom(replies.Source.Port()),
				Protocol:   replies.Protocol,
			})
		}
	}
	return nil
}

// begin takes a record of a begin. What has had the same tuple has ended by then.
func (o *openSet) begin(r *bpf.LedgerRecord, by owner) {
	key := tupleOf(r)
	t := translation{
		began: r.Began, used: r.Used, round: o.round,
		pod: r.Pod, podPort: r.PodPort, owner: unique.Make(by),
	}
	if other, ok := o.open[key]; ok {
		switch {
		case other.began == r.Began: // a comparison has found it before
			return
		case other.began > r.Began: // its record comes late
			o.leave(key, t, other.began, EndEvicted)
			return
		}
		o.leave(key, other, r.Time, EndEvicted)
	}
	o.began++
	o.open[key] = t
}

// end takes a record of an end. It returns what has had the translation, if that is known.
func (o *openSet) end(r *bpf.LedgerRecord) (by owner, known bool) {
	key := tupleOf(r)
	t, ok := o.open[key]
	if ok && t.began == r.Began {
		delete(o.open, key)
	} else {
		id := openID{key, r.Began}
		var a absent
		a, ok = o.absent[id]
		t = a.translation
		delete(o.absent, id)
	}
	if !ok {
		return owner{}, false
	}
	return t.owner.Value(), true
}

// leave notes that a translation is absent.
func (o *openSet) leave(key tuple, t translation, since uint64, reason string) {
	if o.open[key].began == t.began {
		delete(o.open, key)
	}
	if len(o.maps) == 0 {
		return
	}
	id := openID{key, t.began}
	o.absent[id] = absent{t, since, reason}
	o.order = append(o.order, id)
}

// due reports whether so many translations have begun that it is time to compare.
func (o *openSet) due() bool {
	return len(o.maps) > 0 && o.began >= o.room/2
}

// compare finds those that the kernel has no more, by a time. It also takes in those that have
// begun before there was an agent, or whose begin is missing: find says whose they are. All
// records of before readTo were read. missed is how many records have not fitted into the kernel's
// buffer so far.
func (o *openSet) compare(
	now, readTo, missed uint64, find func(addr bpf.Address, began uint64) owner,
) error {
	if len(o.maps) == 0 {
		return nil
	}
	// An end may be among what did not fit, or be of before there was an agent.
	exact := o.round > 0 && missed == o.missed
	o.round, o.missed = o.round+1, missed
	for _, m := range o.maps {
		err := m.walk(m.Map, func(r bpf.LedgerRecord) {
			key := tupleOf(&r)
			t, ok := o.open[key]
			if !ok || t.began != r.Began {
				if r.Began+uint64(endDelay) > readTo {
					return // the record of its begin may come
				}
				r.Time = now
				o.begin(&r, find(r.Pod, r.Began))
				o.found = append(o.found, openID{key, r.Began})
				return
			}
			t.round, t.used = o.round, max(t.used, r.Used)
			o.open[key] = t
		})
		if err != nil {
			return fmt.Errorf("find translations that were evicted: %w", err)
		}
	}
	for key, t := range o.open {
		if t.round != o.round {
			o.leave(key, t, now, EndEvicted)
		}
	}
	for id, a := range o.absent {
		if !exact {
			a.reason = EndUnknown
			o.absent[id] = a
		}
	}
	o.began = 0
	return nil
}

// begun returns records of the begins of at most n translations that a comparison has found.
func (o *openSet) begun(n int, c clock) (records []Record) {
	n = min(n, len(o.found))
	for _, id := range o.found[:n] {
		t, ok := o.open[id.tuple]
		if !ok || t.began != id.began {
			continue // the record of its end says when it began
		}
		raw := t.record(id.tuple)
		r := lineOf(&raw, Begin, c)
		r.Reason = BeginFound
		r.setPod(t.owner.Value())
		records = append(records, r)
	}
	if o.found = o.found[n:]; len(o.found) == 0 {
		o.found = nil
	}
	return records
}

// ended returns records of the ends of at most n translations that are absent, if their ends would
// have been read by a time, or if there are too many to wait for it.
func (o *openSet) ended(readTo uint64, n int, c clock) (records []Record) {
	for len(o.order) > 0 && len(records) < n {
		id := o.order[0]
		a, ok := o.absent[id]
		if ok && a.since+uint64(endDelay) > readTo && len(o.order) <= o.room/2 {
			break
		}
		if o.order = o.order[1:]; !ok { // its end has come
			continue
		}
		delete(o.absent, id)
		record := a.record(id.tuple)
		record.Time = a.since
		r := endOf(&record, a.reason, c)
		r.setPod(a.owner.Value())
		records = append(records, r)
	}
	return records
}
