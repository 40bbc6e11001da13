// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/ctmap"
	"github.com/sluice-net/sluice/bpf/natmap"
)

// Names of the programs: behind the prefix comes the map's, without "sluice_".
const (
	iteratorPrefix = "gc_"
	forEachPrefix  = "all_"
	keyPrefix      = "one_"
	censusProgram  = "count_entries"
	scrubMap       = "sluice_scrub"
	eventsMap      = "sluice_gc"
	suspectsMap    = "sluice_suspects"
)

// Flags of a pass (bpf/programs/gc.h).
const (
	flagExpired = 1 << iota
	flagOrphans
	flagScrub
	flagAll
	flagRemovals
	flagSurvivors
)

// cost is what a method takes, roughly: measured by cmd/bench where a tenth of the
// entries is removed. A bucket costs also if it is empty.
type cost struct{ entry, bucket time.Duration }

var (
	forEachCost  = cost{70 * time.Nanosecond, 12 * time.Nanosecond}
	iteratorCost = cost{140 * time.Nanosecond, 12 * time.Nanosecond}
	keysCost     = cost{3500 * time.Nanosecond, time.Nanosecond}
)

// forEachMost is how long [ForEach] may take to be chosen, as it is one run of the
// kernel. A program that takes too long all the same gives up, and the iterator
// begins anew.
const forEachMost = 700 * time.Microsecond

func (c cost) of(entries, buckets int) time.Duration {
	return time.Duration(entries)*c.entry + time.Duration(buckets)*c.bucket
}

// choose returns how a map with so many entries is gone through.
func choose(entries int, room uint32) Method {
	buckets := 1 << bits.Len32(room-1)
	switch {
	case forEachCost.of(entries, buckets) <= forEachMost:
		return ForEach
	case keysCost.of(entries, buckets) < iteratorCost.of(entries, buckets):
		return Keys
	}
	return Iterator
}

// kernel are the programs for the maps of a set.
type kernel struct {
	*ebpf.Collection
	maps      [mapCount]*ebpf.Map
	iterators [mapCount]*link.Iter
	events    *ringbuf.Reader
	scrubbed  []bpf.Address // what is in sluice_scrub
}

// loadFor loads some programs for the maps of a set. In the place of those that do
// not exist are empty ones.
func loadFor(maps [mapCount]*ebpf.Map, programs func(name string) bool) (*ebpf.Collection, error) {
	spec, err := loadPrograms()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	for name := range spec.Programs {
		if !programs(name) {
			delete(spec.Programs, name)
		}
	}
	replacements := map[string]*ebpf.Map{}
	used := map[string]bool{scrubMap: true, eventsMap: true, suspectsMap: true}
	for i, m := range maps {
		used[names[i]] = true
		if m != nil {
			replacements[names[i]] = m
			spec.Maps[names[i]].MaxEntries = m.MaxEntries()
		}
	}
	for name, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		if !used[name] && !strings.HasPrefix(name, ".") {
			delete(spec.Maps, name)
		}
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	return c, nil
}

func openKernel(maps [mapCount]*ebpf.Map) (*kernel, error) {
	wanted := map[string]bool{}
	for i, m := range maps {
		if m != nil {
			wanted[programName(iteratorPrefix, i)] = true
			wanted[programName(forEachPrefix, i)] = true
			wanted[programName(keyPrefix, i)] = true
		}
	}
	c, err := loadFor(maps, func(name string) bool { return wanted[name] })
	if err != nil {
		return nil, err
	}
	k := &kernel{Collection: c, maps: maps}
	for i, m := range maps {
		if m == nil {
			continue
		}
		k.iterators[i], err = link.AttachIter(link.IterOptions{Program: c.Programs[programName(iteratorPrefix, i)], Map: m})
		if err != nil {
			k.close()
			return nil, fmt.Errorf("attach iterator to map %s: %w", names[i], err)
		}
	}
	if k.events, err = ringbuf.NewReader(c.Maps[eventsMap]); err != nil {
		k.close()
		return nil, fmt.Errorf("open events of removals: %w", err)
	}
	k.events.SetDeadline(time.Unix(1, 0)) // whoever reads takes what there is
	return k, nil
}

func programName(prefix string, index int) string {
	return prefix + strings.TrimPrefix(names[index], "sluice_")
}

func (k *kernel) close() error {
	var errs []error
	for _, it := range k.iterators {
		if it != nil {
			errs = append(errs, it.Close())
		}
	}
	if k.events != nil {
		errs = append(errs, k.events.Close())
	}
	k.Collection.Close()
	return errors.Join(errs...)
}

// prepare tells the programs what to do.
func (k *kernel) prepare(f Filter) error {
	control := programsGcControl{Now: f.Now, ReplyGrace: uint32(min(f.ReplyGrace/time.Second, math.MaxUint32))}
	for flag, wanted := range map[uint32]bool{
		flagExpired: f.Expired, flagOrphans: f.Orphans, flagScrub: len(f.Addrs) > 0, flagAll: f.All,
		flagRemovals: f.Removed != nil, flagSurvivors: f.Survivor != nil,
	} {
		if wanted {
			control.Flags |= flag
		}
	}
	if err := k.Variables["control"].Set(control); err != nil {
		return fmt.Errorf("set what to remove: %w", err)
	}
	return k.setScrubbed(f.Addrs)
}

// setScrubbed puts the addresses in the place of former ones.
func (k *kernel) setScrubbed(addrs []netip.Addr) error {
	m := k.Maps[scrubMap]
	if room := m.MaxEntries(); len(addrs) > int(room) {
		return fmt.Errorf("%d addresses to remove are too many for %s: want %d at most", len(addrs), scrubMap, room)
	}
	for _, a := range k.scrubbed {
		if err := m.Delete(a); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove address %s from %s: %w", a, scrubMap, err)
		}
	}
	k.scrubbed = k.scrubbed[:0]
	for _, addr := range addrs {
		a := bpf.AddressFrom(addr)
		if err := m.Put(a, uint32(0)); err != nil {
			return fmt.Errorf("add address %s to %s: %w", addr, scrubMap, err)
		}
		k.scrubbed = append(k.scrubbed, a)
	}
	return nil
}

// pass goes through one map.
func (k *kernel) pass(ctx context.Context, index int, method Method, f Filter) (Pass, error) {
	p := Pass{Map: names[index], Method: method}
	begun := time.Now()
	if err := k.reset(); err != nil {
		return p, err
	}
	if f.Survivor != nil && method == ForEach {
		method = Iterator // there is too much to tell of in one run
	}
	p.Method = method
	if method == Keys {
		if err := k.byKey(ctx, index, &p, f); err != nil {
			return p, err
		}
	}
	stopped := method == Iterator
	if method == ForEach {
		if err := k.forEach(index, &p); err != nil {
			return p, err
		}
		if err := k.drain(f); err != nil {
			return p, err
		}
		counts, err := k.counts()
		if err != nil {
			return p, err
		}
		if stopped = counts.Stopped != 0; stopped {
			p.Method = Iterator // there was more to do than was thought
			if err := k.again(counts); err != nil {
				return p, err
			}
		}
	}
	if stopped {
		if err := k.iterate(ctx, index, &p, f); err != nil {
			return p, err
		}
	}
	p.Duration = time.Since(begun)
	return p, k.fill(&p)
}

func (k *kernel) reset() error {
	if err := errors.Join(k.Variables["counts"].Set(programsGcCounts{}), k.Variables["run"].Set(programsGcRun{})); err != nil {
		return fmt.Errorf("reset the counts of a pass: %w", err)
	}
	return nil
}

func (k *kernel) counts() (c programsGcCounts, err error) {
	if err := k.Variables["counts"].Get(&c); err != nil {
		return c, fmt.Errorf("read the counts of a pass: %w", err)
	}
	return c, nil
}

// again has a map be gone through from the beginning: what stayed is seen once more.
func (k *kernel) again(c programsGcCounts) error {
	c.Scanned, c.Kept = c.Expired+c.Orphans+c.Scrubbed+c.Flushed+c.Condemned, 0
	if err := k.Variables["counts"].Set(c); err != nil {
		return fmt.Errorf("set the counts of a pass: %w", err)
	}
	return nil
}

// fill sets the counts of a pass.
func (k *kernel) fill(p *Pass) error {
	c, err := k.counts()
	if err != nil {
		return err
	}
	p.Scanned, p.Expired, p.Translations, p.Orphans = c.Scanned, c.Expired, c.Translations, c.Orphans
	p.Scrubbed, p.Flushed, p.Condemned = c.Scrubbed, c.Flushed, c.Condemned
	p.Kept, p.Revived, p.Deferred, p.Failed = c.Kept, c.Revived, c.Deferred, c.Failed
	p.NextExpiry = c.NextExpiry
	p.LongestRun = max(p.LongestRun, time.Duration(c.LongestRun))
	return nil
}

// forEach runs the program that goes through the map at once.
func (k *kernel) forEach(index int, p *Pass) error {
	if _, err := k.Programs[programName(forEachPrefix, index)].Run(&ebpf.RunOptions{}); err != nil {
		return fmt.Errorf("go through map %s: %w", p.Map, err)
	}
	return nil
}

// byKey reads a map in batches, and has the program look at one entry after another.
func (k *kernel) byKey(ctx context.Context, index int, p *Pass, f Filter) error {
	m, program, candidate := k.maps[index], k.Programs[programName(keyPrefix, index)], k.Variables["candidate"]
	buffer := make([]byte, candidate.Size())
	look := func(key []byte) error {
		copy(buffer, key)
		if err := candidate.Set(buffer); err != nil {
			return fmt.Errorf("set which entry of map %s to look at: %w", p.Map, err)
		}
		if _, err := program.Run(&ebpf.RunOptions{}); err != nil {
			return fmt.Errorf("look at an entry of map %s: %w", p.Map, err)
		}
		return k.drain(f)
	}
	switch index {
	case indexCT4TCP, indexCT4Any:
		return eachEntry(ctx, m, p, func(key ctmap.Key4, _ ctmap.Entry) error { return look(bytesOf(&key)) })
	case indexCT6TCP, indexCT6Any:
		return eachEntry(ctx, m, p, func(key ctmap.Key6, _ ctmap.Entry) error { return look(bytesOf(&key)) })
	case indexNAT4:
		return eachEntry(ctx, m, p, func(key natmap.Key4, _ natmap.Entry4) error { return look(bytesOf(&key)) })
	}
	return eachEntry(ctx, m, p, func(key natmap.Key6, _ natmap.Entry6) error { return look(bytesOf(&key)) })
}

// bytesOf returns the memory of a struct without pointers.
func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// iterate reads the iterator of a map. It writes eight bytes when a run of the
// kernel is to end, which it does when that fills the reader's buffer.
func (k *kernel) iterate(ctx context.Context, index int, p *Pass, f Filter) error {
	opened, err := k.iterators[index].Open()
	if err != nil {
		return fmt.Errorf("open iterator of map %s: %w", p.Map, err)
	}
	defer opened.Close()
	fd := int(opened.(*os.File).Fd())
	buffer := make([]byte, 8)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Read(fd, buffer)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("read iterator of map %s: %w", p.Map, err)
		}
		if err := k.drain(f); err != nil {
			return err
		}
		if n == 0 && err == nil {
			return nil
		}
	}
}

// drain hands on what the programs have told.
func (k *kernel) drain(f Filter) error {
	var record ringbuf.Record
	for k.events.AvailableBytes() > 0 {
		switch err := k.events.ReadInto(&record); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("read events of removals: %w", err)
		}
		e, err := decodeEvent(record.RawSample)
		if err != nil {
			return err
		}
		if e.Reason == "" {
			f.Survivor(e)
		} else if f.Removed != nil {
			f.Removed(e)
		}
	}
	return nil
}
